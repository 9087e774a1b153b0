"""Arguments that several verbs of the laboratory have."""

from typing import Annotated

import tyro

Set = Annotated[tuple[str, ...], tyro.conf.arg(name="set"), tyro.conf.UseAppendAction]
"""Arguments of a model, each as name=value."""
