"""One folder a paper: official keys both ways, named models, published recipes, rows of its tables."""
