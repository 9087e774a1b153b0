"""How errors reach a user: one line on stderr and an exit code, never a traceback."""

import os
import sys
import tempfile
import traceback

USER, FAULT, INTERRUPTED, PIPE = 2, 1, 130, 141
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def report_error(error: BaseException) -> int:
    """Print one line about an error and return the exit code that belongs to it.

    Args:
        error: What ended the verb.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE
    line, code = explain(error)
    print(f"leanformer: {line}", file=sys.stderr)
    return code


def explain(error: BaseException) -> tuple[str, int]:
    """What to tell of an error, on one line, and the exit code: 2 for the user's errors, 1 for ours.

    Args:
        error: What ended the verb.

    >>> explain(ValueError("no such\\n  model"))
    ('no such model', 2)
    """
    text = one_line(str(error))
    if isinstance(error, MemoryError) or any(words in text.lower() for words in OUT_OF_MEMORY):
        return f"there is not enough memory for this; smaller batches or images need less ({text[:200]})", USER
    if isinstance(error, OSError):
        what = error.strerror or type(error).__name__
        return one_line(f"{error.filename}: {what}" if error.filename else text or what), USER
    if isinstance(error, ValueError):
        return text or type(error).__name__, USER
    where = _keep_traceback(error)
    return f"this is a fault of leanformer: {type(error).__name__}: {text[:300]}; the traceback is in {where}", FAULT


def one_line(text: str) -> str:
    """A text without line breaks and other control characters.

    >>> one_line("first:\\n  second\\x1b[0m")
    'first: second[0m'
    """
    joined = " ".join(part.strip() for part in text.splitlines() if part.strip())
    return "".join(letter for letter in joined if letter.isprintable() or letter == " ")


def _keep_traceback(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="leanformer-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.writelines([f"{sys.argv}\n", *lines])
        return file.name
    except OSError as full:
        return f"no file, as none can be written to {tempfile.gettempdir()} ({full.strerror})"
