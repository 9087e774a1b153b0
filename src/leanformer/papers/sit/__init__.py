"""SiT, ECCV 2022."""
