"""The papers' studies as named settings, one module a system, each with its SETTINGS, to be run at any scale."""
