"""A run that is stopped goes on where it was: no finished step is done again, and the same plan comes out."""

import contextlib
import json
import os
import signal

import pytest
import torch

import leanformer as lf
from leanformer.search import job
from leanformer.search.choose import Chooser
from leanformer.search.explore import Explorer
from leanformer.search.final import Finish
from leanformer.search.interrupts import sigterm_as_interrupt
from leanformer.train.file_lock import locked

ASKED = {
    "device": "cpu", "batch": 2, "runtime": "macs", "methods": ("tome", "evit"), "choosing": 8, "evaluations": 2,
    "epochs": 1, "sizes": False, "quiet": True,
}  # fmt: skip
STEPS = (
    (Explorer, "best"),
    (Chooser, "_measured"),
    (Chooser, "_trial"),
    (Finish, "__call__"),
)


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=3, num_heads=2, num_classes=3).eval()


@pytest.fixture(scope="module")
def data():
    pixels = torch.rand(80, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return (pixels * 255).to(torch.uint8), torch.arange(80) % 3


@pytest.fixture
def steps(monkeypatch):
    """The names of finished steps, and how many may be done before the run is interrupted."""
    done: dict = {"names": [], "most": 1000}
    monkeypatch.setattr(job.Job, "_write_page", lambda *_: None)

    def counted(step, name):
        def run(*given, **named):
            if done["most"] == 0:
                raise KeyboardInterrupt
            result = step(*given, **named)
            done["names"].append(name)
            done["most"] -= 1
            return result

        return run

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), name))
    return done


def outcome(folder) -> list:
    found = json.loads((folder / "plan.json").read_text())
    points = found.get("curve", [found])
    return [found["searches"], found["timed"], [[each["chosen"], each.get("trials")] for each in points]]


@pytest.mark.parametrize(
    "asked",
    [{"curve": (1.2, 1.5)}, {"curve": (1.2, 1.5), "shared": True, "train": False, "epochs": None}],
    ids=["each by itself", "shared"],
)
def test_a_run_stopped_after_every_step_does_none_again_and_finds_the_same_plans(
    teacher, data, tmp_path, monkeypatch, steps, asked
):
    monkeypatch.setattr("leanformer.search.choose.ROUNDS", 1)
    monkeypatch.setattr("leanformer.search.distil.TRIAL_UPDATES", (1, 1))
    asked = {**ASKED, **asked}
    lf.lean(teacher, data, output=tmp_path / "whole", **asked)
    whole, steps["names"] = steps["names"], []
    for _ in range(len(whole)):
        steps["most"] = 1
        with contextlib.suppress(KeyboardInterrupt):
            lf.lean(teacher, data, output=tmp_path / "parts", **asked)
    steps["most"] = 0
    lf.lean(teacher, data, output=tmp_path / "parts", **asked)
    assert steps["names"] == whole
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_sigterm_leaves_what_is_done_as_ctrl_c_does(teacher, data, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Chooser, "_measured", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        lf.lean(teacher, data, speedup=1.3, output=tmp_path, **ASKED)
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["judged"]
    assert len(found["searches"]) == 1
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_library_makes_of_a_signal_is_an_interrupt_still(number):
    def exporter():
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt as stopped:
            raise ValueError("the graph cannot be decomposed") from stopped

    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        exporter()
    with pytest.raises(ValueError, match="a fault"), sigterm_as_interrupt():
        raise ValueError("a fault")


def test_signals_outside_of_a_run_are_left_as_they_were():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_as_interrupt():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_folder_in_which_another_run_is_alive_is_refused(teacher, data, tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match=f"in use by the process {os.getpid()}"):
        lf.lean(teacher, data, speedup=1.2, output=tmp_path, **ASKED)
    assert not list(tmp_path.iterdir())
