"""What the service asks of a model, whatever its task."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .images import Decoder, Seen


class Servable(Protocol):
    """What a model needs to be served."""

    @property
    def name(self) -> str: ...
    @property
    def runtime(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def classes(self) -> Sequence[str]: ...
    @property
    def batch(self) -> int | None:
        """Images that are given at once at most; None for any number."""
        ...

    def wants(self) -> dict[str, Callable[[Any], Sequence[Any]]]:
        """What can be asked of it → what computes the answers."""
        ...

    def decoder(self, max_pixels: int) -> Decoder:
        """Makes what it sees of the bytes of an image."""
        ...

    def told(self, seen: Seen, answer: Any, **options: Any) -> dict[str, Any]:
        """What is said of one image; `Refused` where its answer is no number."""
        ...

    def warm_up(self, batch: int) -> None:
        """Compute once, and refuse a model that answers nonsense."""
        ...
