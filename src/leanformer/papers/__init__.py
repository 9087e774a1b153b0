"""One file or folder a paper: its named models, official keys both ways, rows of its tables, published recipes."""
