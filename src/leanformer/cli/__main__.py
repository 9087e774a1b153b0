"""python -m leanformer.cli"""

import sys

from . import main

sys.exit(main())
