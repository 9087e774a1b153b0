"""Decoding beside each other, within a budget of pixels.

    headers of all images → pixels of the request → refuse, or decode: small images at once, large ones in turn

Large images have threads of their own and share a budget, so that a small picture never waits behind them.
"""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .images import Decoder, Refused, Seen
from .limits import Limits

SMALL = 16
"""An image of up to this part of the largest one allowed is small."""


class Budget:
    """An amount of something that tasks of one event loop take from, in the order in which they come."""

    def __init__(self, total: int) -> None:
        self.total = self.left = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, amount: int) -> int:
        """Wait for so much, but not for more than there can ever be; returns what `give` must get back."""
        amount = min(amount, self.total)
        if self._waiting or amount > self.left:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((amount, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # given in the moment in which the task gave up
                    self.give(amount)
                raise
        else:
            self.left -= amount
        return amount

    def give(self, amount: int) -> None:
        """Give back what was taken; who waits longest goes on first."""
        self.left += amount
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self.left):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self.left -= wanted
                turn.set_result(None)


class Decoding:
    """The threads that decode the images of all requests, and what they may hold at a time."""

    def __init__(self, limits: Limits) -> None:
        cores = os.cpu_count() or 1
        self.limits, self.budget = limits, Budget(limits.decoding)
        self.small = ThreadPoolExecutor(cores, thread_name_prefix="leanformer-decoder")
        self.large = ThreadPoolExecutor(max(1, cores - 1), thread_name_prefix="leanformer-large-decoder")

    async def __call__(self, decoder: Decoder, files: Sequence[bytes]) -> list[Seen]:
        """The images of one request as a model sees them; refused as a whole where one or their sum is too much.

        Args:
            decoder: How the model that is asked sees images.
            files: The images.
        """
        loop = asyncio.get_running_loop()
        costs = await asyncio.gather(*(loop.run_in_executor(self.small, decoder.cost, data) for data in files))
        if sum(costs) > self.limits.request_pixels:
            raise Refused(
                413,
                f"the images have {sum(costs)} pixels to decode together; up to {self.limits.request_pixels} are taken",
            )
        return list(await asyncio.gather(*(self._decode(decoder, data, cost) for data, cost in zip(files, costs))))

    async def _decode(self, decoder: Decoder, data: bytes, cost: int) -> Seen:
        if cost <= self.limits.pixels // SMALL:
            return await asyncio.get_running_loop().run_in_executor(self.small, decoder, data)
        loop, taken = asyncio.get_running_loop(), await self.budget.take(cost)
        decoded = self.large.submit(decoder, data)
        # a thread goes on when its request has given up, and holds its pixels until it is done
        decoded.add_done_callback(lambda _: loop.call_soon_threadsafe(self.budget.give, taken))
        return await asyncio.wrap_future(decoded)

    def close(self) -> None:
        """Wait for the threads."""
        self.small.shutdown()
        self.large.shutdown(cancel_futures=True)
