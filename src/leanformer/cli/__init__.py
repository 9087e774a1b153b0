"""The command line `leanformer`: the library's verbs, each in its module here.

Nothing heavy is imported before a verb runs: a verb's module holds its options and its help, and what does the work is
imported inside the function. Only the parser of the verb that was given is built.
"""

import difflib
import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._version import __version__
from .errors import report_error
from .parser import parse

VERBS = {
    "lean": "lean:lean",
    "list": "models:list_",
    "backbones": "backbones:backbones",
    "describe": "models:describe",
    "apply": "models:apply",
    "fuse": "models:fuse",
    "calibrate": "calibrate:calibrate",
    "recalibrate": "calibrate:recalibrate",
    "bench": "bench:bench",
    "export": "export:export",
    "sweep": "sweep:sweep",
    "profile": "profile:profile",
    "show": "show:show",
    "predict": "predict:predict",
    "serve": "serve:serve",
    "report": "report:report",
    "tables": "tables:tables",
    "train": "train:train",
    "eval": "eval:eval_",
    "recipes": "recipes:recipes",
    "demo": "demo:demo",
}
"""Verb → its module here and the function in it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code.

    0 for success; 2, with one line on stderr, for what a user can get wrong; 1 for a verb's own no (`tables` and
    `bench --compare-with` that find a difference) and for a fault of ours, whose line names a file with the traceback;
    130 after an interrupt.

    Args:
        arguments: What stands behind `leanformer`; by default that of this process.

    >>> main(["tables", "metaformer"])  # doctest: +SKIP
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except (Exception, KeyboardInterrupt) as error:
        return report_error(error)


def _run(given: list[str]) -> int:
    if not given:
        raise ValueError("which verb? leanformer --help lists them")
    if given[0] in ("-h", "--help"):
        print(_help())
        return 0
    if given[0] == "--version":
        print(f"leanformer {__version__}")
        return 0
    logging.getLogger("timm").setLevel(logging.ERROR)  # what it warns of ends in an error line of ours
    call = parse(find_verb(given[0]), given[0], given[1:])
    return 0 if call is None else call() or 0


def find_verb(verb: str) -> Callable[..., Any]:
    """The function of a verb, its module imported.

    Args:
        verb: A key of VERBS.
    """
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=2)
        guess = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"unknown verb '{verb}'; {guess}leanformer --help lists them")
    module, _, function = VERBS[verb].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)


def _help() -> str:
    """All verbs, each with the first line of its function's docstring."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:{width}}  {(find_verb(verb).__doc__ or '').strip().splitlines()[0]}" for verb in VERBS]
    head = ["usage: leanformer VERB [OPTIONS]", "", (sys.modules["leanformer"].__doc__ or "").strip(), ""]
    return "\n".join([*head, *lines, "", "leanformer VERB --help tells a verb's options; leanformer --version"])


if __name__ == "__main__":
    sys.exit(main())
