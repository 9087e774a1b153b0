"""The environment variables that are read, all in one place and all spelt LEANFORMER_ and one word.

Whatever changes what a command computes is an option of the command; these tell a process only where it is.
"""

import os

VARIABLES = {
    "LEANFORMER_CACHE": "folder in which lf.optimize remembers its decisions; ~/.cache/leanformer where it is not set",
    "LEANFORMER_COMMAND": "the command that result files name, where the process was started by another command",
    "LEANFORMER_COMMIT": "the commit that result files name, where the code runs outside its repository",
    "LEANFORMER_WORKER": "which of how many processes of a study this one is, as 2/5; set by study --workers",
    "LEANFORMER_SCREENSHOTS": "folder in which the tests of the service's page leave pictures of it",
}
"""Variable → what it means."""


def environment(name: str, default: str = "") -> str:
    """The value of one of the variables in VARIABLES.

    Args:
        name: the whole name, as LEANFORMER_CACHE.
        default: what stands for a variable that is not set or empty.

    Raises:
        ValueError: for a name that is not in VARIABLES.

    >>> environment("LEANFORMER_WORKER", "0/1")
    '0/1'
    """
    if name not in VARIABLES:
        raise ValueError(f"no environment variable '{name}' is read; known: {', '.join(VARIABLES)}")
    return os.environ.get(name) or default
