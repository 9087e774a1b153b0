"""The loss terms of recent updates, left on the device until they are looked at: reading them each time would wait."""

import math
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch import Tensor


class NonFiniteLoss(ValueError):
    """A loss term became infinite or no number."""


@dataclass
class Ledger:
    """Terms by update, read in one go. A term that is not finite ends the run with a report of where it was.

    >>> ledger = Ledger()
    >>> ledger.add(7, 1e-3, ("soft",), torch.tensor([0.5]))
    >>> ledger.read()
    {'soft': 0.5}
    """

    rows: list[tuple[int, float, tuple[str, ...], Tensor]] = field(default_factory=list)

    def add(self, update: int, rate: float, names: tuple[str, ...], terms: Tensor) -> None:
        """Note the terms (a tensor of as many values as names) of an update."""
        self.rows.append((update, rate, names, terms))

    def read(self, accelerator: Accelerator | None = None) -> dict[str, float]:
        """Means of the terms since the last reading, over all processes; forgets them."""
        if not self.rows:
            return {}
        rows, self.rows = self.rows, []
        values = torch.cat([terms for *_, terms in rows])  # (all terms,)
        if accelerator is not None and accelerator.num_processes > 1:
            values = accelerator.reduce(values, "mean")
        left = values.tolist()  # type: ignore[union-attr]
        sums: dict[str, list[float]] = {}
        for update, rate, names, _ in rows:
            mine, left = left[: len(names)], left[len(names) :]
            check_finite(update, rate, names, mine)
            for name, value in zip(names, mine):
                sums.setdefault(name, []).append(value)
        return {name: sum(found) / len(found) for name, found in sums.items()}


def check_finite(update: int, rate: float, names: tuple[str, ...], values: list[float]) -> None:
    """Raise with step, terms and learning rate where a term is not finite."""
    bad = [f"{name} = {value}" for name, value in zip(names, values) if not math.isfinite(value)]
    if bad:
        raise NonFiniteLoss(
            f"the loss is not finite at update {update}: {', '.join(bad)}; learning rate {rate:.3g}. "
            "The last checkpoint is from before; resume with a lower learning rate, clip_grad, or nonfinite=skip"
        )
