"""python -m leanformer: the command line, where the script is not on the path."""

import sys

from .cli import main

sys.exit(main())
