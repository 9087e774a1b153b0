"""The verbs of the command line, one module each: a function whose arguments are the options and whose docstring
is the help. `cli.py` lists them."""
