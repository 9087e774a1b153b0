"""The command line `leanformer`: the library's verbs, each in its module here."""

import sys
from collections.abc import Sequence

import tyro

from .backbones import backbones
from .bench import bench
from .calibrate import calibrate, recalibrate
from .demo import demo
from .eval import eval_
from .export import export
from .models import apply, describe, fuse, list_
from .profile import profile
from .recipes import recipes
from .report import report
from .serve import serve, serve_load
from .show import show
from .sweep import sweep
from .tables import tables
from .train import train

VERBS = {
    "list": list_,
    "backbones": backbones,
    "describe": describe,
    "apply": apply,
    "fuse": fuse,
    "calibrate": calibrate,
    "recalibrate": recalibrate,
    "bench": bench,
    "export": export,
    "sweep": sweep,
    "profile": profile,
    "show": show,
    "serve": serve,
    "serve-load": serve_load,
    "report": report,
    "tables": tables,
    "train": train,
    "eval": eval_,
    "recipes": recipes,
    "demo": demo,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. What a user can get wrong ends in one line on stderr and exit code 2.

    >>> main(["tables", "evit"])  # doctest: +SKIP
    0
    """
    try:
        return tyro.extras.subcommand_cli_from_dict(VERBS, prog="leanformer", args=arguments) or 0
    except ValueError as error:
        print(f"leanformer: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
