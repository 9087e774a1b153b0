"""Runs that are killed, stopped or starved on purpose, in processes of their own."""

import multiprocessing
import os
import resource
import signal
from pathlib import Path
from typing import Any

import torch
from helpers import arrays, picture_folder, tiny  # noqa: F401  (other tests take them from here)

import leanformer as lf
from leanformer.core import Objective, Step
from leanformer.train import checkpoint
from leanformer.train.objectives import CrossEntropy, SoftDistillation

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["leanformer"])


def in_process(target: Any, *arguments: Any) -> int:
    """Run a function in a fresh process and return its exit code; -9 means SIGKILL."""
    process = processes.Process(target=target, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


RECIPE = lf.recipes.Recipe(
    epochs=3, batch_size=8, learning_rate=1e-2, warmup_epochs=1, ema=0.9, drop_path=0.2, clip_grad=1.0, repeats=2
)


class Reverse(Objective):
    """An objective with parameters of its own."""

    learning_rate_scale = 5.0

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.back = torch.nn.Linear(16, 16)

    def student_taps(self):
        return frozenset({"blocks.1"})

    def teacher_taps(self):
        return {"teacher": frozenset({"blocks.1"})}

    def forward(self, step: Step):
        difference = self.back(step.student.taps["blocks.1"]) - step.teacher().taps["blocks.1"]
        return {"reverse": difference.square().mean()}


class At(Objective):
    """Does something in the forward pass of one update."""

    def __init__(self, call: int, action: Any):
        super().__init__()
        self.call, self.action, self.calls = call, action, 0

    def forward(self, step: Step):
        self.calls += 1
        if self.calls == self.call:
            self.action()
        return {}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def run(folder: str, data: Any = None, extra: Objective | None = None, **options: Any) -> Any:
    """One and the same run, whole or continued, with augmentation, drop path, EMA, accumulation and a teacher."""
    torch.set_num_threads(1)
    objective = CrossEntropy() + SoftDistillation() + Reverse()
    if extra is not None:
        objective = objective + extra
    return lf.train.fit(
        tiny(), recipe=RECIPE, data=arrays() if data is None else data, teacher=tiny(1), objective=objective,
        output=folder, device="cpu", quiet=True, workers=0, accumulate=2,
        **{"save_every": 2, "log_every": 1, **options},
    )  # fmt: skip


def killed_at(folder: str, update: int, data: Any = None) -> None:
    run(folder, data, At(2 * update + 1, kill))


def begun_or_resumed(folder: str) -> None:
    run(folder, resume=True)


def killed_after(folder: str, seconds: float) -> bool:
    """Begin or take up the run and kill it after that time; whether it was still running."""
    process = processes.Process(target=begun_or_resumed, args=(folder,))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def killed_while_writing(folder: str, number: int) -> None:
    """Die in the middle of the bytes of the checkpoint of that number."""
    written = 0

    def half(state: dict[str, Any], name: str) -> None:
        nonlocal written
        written += 1
        whole(state, name)
        if written == number:
            os.truncate(name, os.path.getsize(name) // 2)
            kill()

    whole, checkpoint._save = checkpoint._save, half
    run(folder)


def killed_between_renames(folder: str) -> None:
    """Die when the old checkpoint has been moved away and the new one is not yet in its place."""
    replace = Path.replace

    def die(self: Path, target: Path) -> Path:
        if self.name == "checkpoint.next.pt" and (Path(folder) / "checkpoint.previous.pt").exists():
            kill()
        return replace(self, target)

    Path.replace = die  # type: ignore[method-assign]
    run(folder)


def terminated_at(folder: str, update: int) -> None:
    result = run(folder, None, At(2 * update + 1, terminate), save_every=100)
    assert not result.finished


def starved(folder: str, limit: int) -> None:
    """No file may grow beyond the limit: what a full disk looks like to a writer. Exits with 3 and tells why."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill_up() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    try:
        run(folder, None, At(11, fill_up))
    except ValueError as error:
        Path(f"{folder}.told").write_bytes(str(error).encode()[:limit])
        os._exit(3)
