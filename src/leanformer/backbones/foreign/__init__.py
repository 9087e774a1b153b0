"""Models of other libraries: Hugging Face `transformers` and torchvision, as timm's with the same answers.

    their module → Translation: a registered name, its arguments, the weights under timm's keys → timm's module → adopt

One file a family. None imports the other library: a model is known by the full name of its class, and everything else
is read off the model that was given.
"""

from .recognise import from_elsewhere, translate
from .translation import Translation

__all__ = ["Translation", "from_elsewhere", "translate"]
