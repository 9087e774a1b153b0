"""Examples in docstrings (`>>> …`) as blocks of code, so that what stands in them is not read as Markdown."""

from typing import Any

from griffe import Extension, Object


def fenced(text: str) -> str:
    """A docstring with a fence around each paragraph that begins with a prompt.

    Args:
        text: The docstring.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        f"```pycon\n{each.strip()}\n```" if each.lstrip().startswith(">>> ") else each for each in paragraphs
    )


class Doctests(Extension):
    """Fences the examples of every object."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
