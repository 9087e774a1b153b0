"""A run folder is held by one process, cleaned of what a killed one left, and taken back where nothing was learnt."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import survival
import torch
from survival import RECIPE, arrays, picture_folder, processes, run, tiny

import leanformer as lf
from leanformer.cli import main
from leanformer.core import Objective
from leanformer.train.file_lock import locked

MODEL = ("vit", *(part for setting in (
    "img_size=16", "patch_size=8", "embed_dim=16", "depth=2", "num_heads=2", "num_classes=4",
) for part in ("--set", setting)))  # fmt: skip


def paused(folder: str) -> None:
    """A run that stands still in its fourth update, with a file half-written, until it is killed."""

    def wait() -> None:
        (Path(folder) / ".checkpoint.next.pt.0123abcd").write_bytes(b"half")
        (Path(folder) / "here").touch()
        time.sleep(300)

    run(folder, None, survival.At(7, wait))


@pytest.fixture
def alive(tmp_path):
    """A run that is alive, and its folder."""
    folder = tmp_path / "run"
    process = processes.Process(target=paused, args=(str(folder),))
    process.start()
    while not (folder / "here").exists():
        assert process.is_alive(), "the run ended"
        time.sleep(0.05)
    yield folder, process
    process.kill()
    process.join()


def test_a_run_that_is_alive_is_not_resumed_and_keeps_its_files(alive):
    folder, process = alive
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(ValueError, match=f"in use by the process {process.pid}:"):
        run(str(folder), resume=True)
    with pytest.raises(ValueError, match="in use"):
        run(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == before
    assert ".checkpoint.next.pt.0123abcd" in before


def test_the_lock_ends_with_its_process_and_leftovers_go_at_the_next_start(alive, tmp_path):
    folder, process = alive
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    result = run(str(folder), resume=True)
    whole = run(str(tmp_path / "whole"))
    for key, value in whole.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[key], value)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert not (folder / "run.lock").exists()


def test_a_forked_child_does_not_hold_the_lock(tmp_path):
    with locked(tmp_path):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with locked(tmp_path):
            assert (tmp_path / "run.lock").read_text() == f"{os.getpid()}\n"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Fails(Objective):
    """An objective that fails in the given call."""

    def __init__(self, call: int):
        super().__init__()
        self.call, self.calls = call, 0

    def forward(self, step):
        self.calls += 1
        if self.calls == self.call:
            raise ValueError("it fails")
        return {"zero": step.student.output.sum() * 0}


def failing(folder: Path, call: int) -> None:
    with pytest.raises(ValueError, match="it fails"):
        lf.train.fit(
            tiny(), recipe=RECIPE, data=arrays(), objective=Fails(call), output=folder, device="cpu", quiet=True,
            workers=0,
        )  # fmt: skip


def test_an_error_before_the_first_update_leaves_no_folder(tmp_path):
    failing(tmp_path / "a" / "b" / "run", 1)
    assert not list(tmp_path.iterdir())


def test_an_error_before_the_first_update_leaves_what_was_there(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    failing(tmp_path / "run", 1)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_an_error_after_the_first_update_keeps_the_folder(tmp_path):
    failing(tmp_path / "run", 3)
    assert {"run.json", "student.safetensors"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_a_resumed_run_that_cannot_start_keeps_its_folder(tmp_path):
    data = picture_folder(tmp_path / "data")
    folder = tmp_path / "run"
    assert survival.in_process(survival.killed_at, str(folder), 0, str(data)) == -9
    before = sorted(path.name for path in folder.iterdir() if path.name != "run.lock")
    data.rename(tmp_path / "elsewhere")
    assert main(["train", "--resume", str(folder)]) == 2
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    "wrong", [("--data", "nowhere"), ("--recipe", "finetune:batch_size=999"), ("--objective", "nothing")]
)
def test_a_command_that_ends_with_2_leaves_no_output(tmp_path, wrong, capsys):
    data = picture_folder(tmp_path / "data", 8)
    options = {"--data": str(data), "--output": str(tmp_path / "run"), "--device": "cpu", "--workers": "0"}
    options |= {"--recipe": "finetune:epochs=1,batch_size=4", wrong[0]: wrong[1]}
    assert main(["train", *MODEL, *(part for option in options.items() for part in option)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_calibrate_says_how_many_images_it_was_fitted_on(tmp_path, capsys):
    data = picture_folder(tmp_path / "data", 24)
    command = ["calibrate", *MODEL, "--apply", "repa:refine_steps=0", "--data", str(data), "--device", "cpu"]
    assert main([*command, "--images", "9999", "--output", str(tmp_path / "lean.safetensors")]) == 0
    assert "fitted on 24 images" in capsys.readouterr().out


def test_the_run_file_says_how_much_was_calibrated(tmp_path):
    run(str(tmp_path / "run"), max_updates=1, calibrate=7)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["calibrate"] == 7
