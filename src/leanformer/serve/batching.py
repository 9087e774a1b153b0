"""Dynamic batching: images of several requests go through the model together.

A batch leaves when it has `max_batch` images or when its first image has waited `max_wait` seconds. One thread
computes; what waits is bounded in images and in bytes, and what would not fit is refused at once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

Waiting = tuple[float, Tensor, "Future[Any]"]


class Full(RuntimeError):
    """As many images wait as may."""


class Batcher:
    """A queue of images (C, H, W) and the thread that takes batches from it, by default joined to (B, C, H, W).

    >>> batcher = Batcher(lambda batch: batch.sum((1, 2, 3)).tolist(), max_batch=4, max_wait=0.0, queue=8)
    >>> [future.result() for future in batcher.submit([torch.ones(1, 2, 2)])]
    [4.0]
    >>> batcher.close()
    """

    def __init__(
        self,
        forward: Callable[[Any], Sequence[Any]],
        *,
        max_batch: int = 16,
        max_wait: float = 0.005,
        queue: int = 256,
        max_bytes: int = 2**30,
        on_batch: Callable[[int], None] = lambda size: None,
        join: Callable[[list[Tensor]], Any] = torch.stack,
    ) -> None:
        if max_batch < 1 or max_wait < 0:
            raise ValueError(f"a batch of up to {max_batch} images within {max_wait} s can never leave")
        self.forward, self.max_batch, self.max_wait, self.queue = forward, max_batch, max_wait, queue
        self.max_bytes, self.on_batch, self.join = max_bytes, on_batch, join
        self._waiting: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="leanformer-batcher", daemon=True)
        self._thread.start()

    def submit(self, images: Sequence[Tensor]) -> "list[Future[Any]]":
        """Queue the images of one request, all or none; each future gets what `forward` gives for its image.

        A request that is alone is taken however many bytes it has.
        """
        futures: list[Future[Any]] = [Future() for _ in images]
        with self._changed:
            if self._closed:
                raise Full("the service is shutting down")
            if len(self._waiting) + len(images) > self.queue:
                raise Full(f"{len(self._waiting)} images wait already")
            held = sum(image.nbytes for _, image, _ in self._waiting)
            if held and held + sum(image.nbytes for image in images) > self.max_bytes:
                raise Full(f"{len(self._waiting)} images of {held} bytes wait already")
            now = time.monotonic()
            self._waiting.extend((now, image, future) for image, future in zip(images, futures))
            self._changed.notify_all()
        return futures

    def __len__(self) -> int:
        """How many images wait."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Take nothing new, answer what waits, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)
            del batch  # the pictures would stay in memory until the next ones come

    def _answer(self, batch: list[Waiting]) -> None:
        # a request that gave up cancels its futures, so its images cost nothing
        wanted = [(image, future) for _, image, future in batch if future.set_running_or_notify_cancel()]
        if wanted:
            self._compute([image for image, _ in wanted], [future for _, future in wanted])

    def _next(self) -> list[Waiting]:
        """The next batch; empty when closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            left = self._waiting[0][0] + self.max_wait - time.monotonic()
            self._changed.wait_for(lambda: len(self._waiting) >= self.max_batch or self._closed, timeout=max(left, 0))
            return [self._waiting.popleft() for _ in range(min(self.max_batch, len(self._waiting)))]

    def _compute(self, images: list[Tensor], futures: "list[Future[Any]]") -> None:
        try:
            self.on_batch(len(images))
            answers = self.forward(self.join(images))
            assert len(answers) == len(futures)
        except Exception as error:  # whatever it is, it belongs to these requests; the next batch may be fine
            for future in futures:
                future.set_exception(error)
            return
        for future, answer in zip(futures, answers):
            future.set_result(answer)
