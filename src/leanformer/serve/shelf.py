"""The models of a service by name, each with its queues; one is put in another's place while both answer.

request → entry (counted in) → decode → queue → batch → answers → (counted out)
changed file → new entry beside the old one → exchanged → the old one goes when the last of its requests is answered
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .batching import Batcher
from .images import Refused
from .limits import Limits
from .servable import Servable

VERBS = {
    "classes": "classify", "kept": "classify", "embedding": "embed", "objects": "detect", "regions": "segment",
}  # fmt: skip
"""What can be wanted of a model → the last word of the address at which it is asked for."""
NAMES = {"classify": "classes", "embed": "embeddings", "detect": "boxes", "segment": "label maps"}
"""The last word of an address → what is answered there."""


class Entry:
    """One served model: how it sees images, and a queue for each thing that can be asked of it.

    Args:
        served: The model.
        limits: What requests may cost.
        max_batch: Images that go through the model together.
        max_wait: Seconds that an image waits for others.
        turn: Held while a model computes: models that compute at the same time would only slow each other down.
        on_batch: Told the size of every batch.
    """

    def __init__(
        self,
        served: Servable,
        limits: Limits,
        *,
        max_batch: int,
        max_wait: float,
        turn: threading.Lock,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.served, self.decoder, self.users = served, served.decoder(limits.pixels), 0

        def queue(compute: Callable[[Any], Sequence[Any]]) -> Batcher:
            def in_turn(images: Any) -> Sequence[Any]:
                with turn:
                    return compute(images)

            return Batcher(
                in_turn, max_batch=min(max_batch, served.batch or max_batch), max_wait=max_wait, queue=limits.queue,
                max_bytes=limits.waiting, on_batch=on_batch,
                join=torch.stack if served.task == "classification" else list,
            )  # fmt: skip

        self.queues = {want: queue(compute) for want, compute in served.wants().items()}

    def require(self, want: str) -> None:
        """Refuse what the model does not do, with what it does."""
        if VERBS[want] not in self.verbs:
            name = self.served.name
            ways = " or ".join(f"POST /models/{name}/{verb}" for verb in self.verbs)
            raise Refused(422, f"{name} gives no {NAMES[VERBS[want]]}; it answers {ways}")

    @property
    def verbs(self) -> list[str]:
        """What requests may ask of the model: classify, embed, detect or segment."""
        return list(dict.fromkeys(VERBS[want] for want in self.queues))

    def submit(self, images: Sequence[Tensor], want: str) -> "list[Future[Any]]":
        """Queue the images of one request; `kept` is `classes` where the model tells kept patches anyway."""
        return self.queues[want if want in self.queues else "classes"].submit(images)

    @property
    def alive(self) -> bool:
        return all(queue.alive for queue in self.queues.values())

    def __len__(self) -> int:
        """How many images wait."""
        return sum(map(len, self.queues.values()))

    def close(self) -> None:
        """Answer what waits, and stop."""
        for queue in self.queues.values():
            queue.close()


class Shelf:
    """Entries by name; the first is asked where a request names none. Used by one event loop alone."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        names = [entry.served.name for entry in entries]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"models are asked for by name, and these are called {', '.join(names) or 'nothing'}")
        self.entries = dict(zip(names, entries))
        self.default = names[0]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    @contextmanager
    def using(self, name: str | None) -> Iterator[Entry]:
        """The entry of a name, which stays open within the context though another one takes its place."""
        entry = self.entries.get(name or self.default)
        if entry is None:
            raise Refused(404, f"no model is called '{name}'; there is: {', '.join(self.entries)}")
        entry.users += 1
        try:
            yield entry
        finally:
            entry.users -= 1

    def put(self, entry: Entry) -> Entry:
        """Put an entry in the place of the one with its name, which is returned; it may still have users."""
        name = entry.served.name
        old, self.entries[name] = self.entries[name], entry
        return old
