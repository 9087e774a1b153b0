"""SIGTERM and SIGINT end a run after the update in hand, with its state saved."""

import signal
import threading
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator


class Signals:
    """Within the context the signals are noted instead of obeyed; a second Ctrl-C interrupts at once.

    >>> with Signals() as signals:
    ...     signals.caught
    0
    """

    def __init__(self) -> None:
        self.caught = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hand_on(self) -> None:
        """Give a SIGTERM that came too late to end this run early to whoever was to get it."""
        handler = self._before.get(self.caught)
        if self.caught == signal.SIGTERM and callable(handler):
            handler(self.caught, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = number

    def agreed(self, accelerator: Accelerator) -> bool:
        """Whether any process was asked to stop: all of them must stop after the same update."""
        if accelerator.num_processes == 1:
            return bool(self.caught)
        flag = torch.tensor(float(self.caught > 0), device=accelerator.device)
        if accelerator.reduce(flag, "sum").item():  # type: ignore[union-attr]
            self.caught = self.caught or signal.SIGTERM
        return bool(self.caught)
