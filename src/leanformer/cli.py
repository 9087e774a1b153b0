"""The command line `leanformer`: the library's verbs, each in its module under `commands`."""

import sys
from collections.abc import Sequence

import tyro

from .commands.backbones import backbones
from .commands.bench import bench
from .commands.calibrate import calibrate, recalibrate
from .commands.demo import demo
from .commands.eval import eval_
from .commands.export import export
from .commands.models import apply, describe, fuse, list_
from .commands.profile import profile
from .commands.recipes import recipes
from .commands.report import report
from .commands.serve import serve, serve_load
from .commands.show import show
from .commands.study import study
from .commands.sweep import sweep
from .commands.tables import tables
from .commands.train import train

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
    "study": study,
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
