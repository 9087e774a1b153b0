"""Run folders that were damaged or made by an enemy: a resumed run gives the right numbers or one line, never others.

HOSTILE_CASES says how many cases of each kind; the random choices are those of the case's number.
"""

import functools
import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from survival import arrays, picture_folder, tiny

import leanformer as lf
from leanformer.cli import main
from leanformer.train import checkpoint
from leanformer.train.runs import read_run, settings_of

CASES = int(os.environ.get("HOSTILE_CASES", "60"))
RECIPE = lf.recipes.plain(epochs=1, batch_size=8, learning_rate=1e-3)


@functools.cache
def states(folder: Path) -> dict[str, bytes]:
    """A small run's two checkpoints."""
    lf.train.fit(
        tiny(), recipe=RECIPE, data=arrays(), output=folder, device="cpu", quiet=True, workers=0, save_every=1,
        max_updates=2,
    )  # fmt: skip
    return {name: (folder / name).read_bytes() for name in checkpoint.NAMES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return states(tmp_path_factory.mktemp("hostile") / "run")


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The file with bits flipped, cut off, emptied, grown, or with a piece of it zeroed."""
    kind = draw.choice(("flip", "flip", "flip", "flips", "cut", "empty", "more", "zeros"))
    body = bytearray(content)
    if kind in ("flip", "flips"):
        for _ in range(1 if kind == "flip" else draw.randint(2, 9)):
            body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del body[draw.randrange(len(body)) :]
    elif kind == "empty":
        body.clear()
    elif kind == "more":
        body += draw.randbytes(draw.randint(1, 100))
    else:
        first = draw.randrange(len(body))
        body[first : first + 4096] = bytes(len(body[first : first + 4096]))
    return bytes(body)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_every_damaged_checkpoint_gives_way_to_the_one_before_and_says_so(whole, tmp_path, tally: Counter[str]):
    newest, previous = (checkpoint.NAMES[0], whole[checkpoint.NAMES[0]]), whole[checkpoint.NAMES[1]]
    (tmp_path / checkpoint.NAMES[1]).write_bytes(previous)
    right = checkpoint.read_checkpoint(tmp_path)
    for case in range(CASES):
        body = damaged(newest[1], random.Random(case))
        (tmp_path / newest[0]).write_bytes(body)
        told: list[str] = []
        state = checkpoint.read_checkpoint(tmp_path, told.append)
        if body == newest[1]:  # zeros were zeroed
            tally["whole"] += 1
            assert state["update"] == 2
            continue
        tally["gave way"] += 1
        assert same(state, right), f"case {case}: other numbers"
        assert len(told) == 1
        assert "\n" not in told[0]
        assert "going on from checkpoint.previous.pt, which was written after update 1" in told[0]
    assert tally["gave way"] > 0.8 * CASES


def test_two_damaged_checkpoints_end_in_one_line(whole, tmp_path, tally: Counter[str]):
    for case in range(CASES):
        draw = random.Random(f"both {case}")
        for name, body in whole.items():
            changed = damaged(body, draw)
            (tmp_path / name).write_bytes(changed if changed != body else b"")
        with pytest.raises(ValueError, match=r"no checkpoint in .* can be read") as error:
            checkpoint.read_checkpoint(tmp_path)
        assert "\n" not in str(error.value)
        tally["refused"] += 1


def test_a_run_goes_on_from_the_one_before_and_the_whole_one_is_not_lost(whole, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, body in whole.items():
        (folder / name).write_bytes(body if name != checkpoint.NAMES[0] else b"")
    result = lf.train.fit(
        tiny(), recipe=RECIPE, data=arrays(), output=folder, device="cpu", quiet=True, workers=0, resume=True,
        save_every=1, max_updates=2,
    )  # fmt: skip
    assert result.updates == 2
    assert (folder / checkpoint.DAMAGED).read_bytes() == b""
    assert (folder / checkpoint.NAMES[1]).read_bytes() == whole[checkpoint.NAMES[1]], "the previous one was replaced"
    assert "checkpoint.pt: is cut off" in (folder / "log.jsonl").read_text()


def test_a_checkpoint_of_other_contents_with_a_right_checksum_fits_or_ends_in_one_line(
    whole, tmp_path, tally: Counter[str]
):
    (tmp_path / checkpoint.NAMES[0]).write_bytes(whole[checkpoint.NAMES[0]])
    right = checkpoint.read_checkpoint(tmp_path)
    odd = (None, 3, "x", [], {}, float("nan"), torch.zeros(2))
    for case in range(min(CASES, 600) // 3):
        draw = random.Random(f"contents {case}")
        folder = tmp_path / str(case)
        folder.mkdir()
        state = {key: value for key, value in right.items() if key != "format"}
        key = draw.choice([key for key in state if key not in ("start", "seconds", "methods", "scaler", "ema")])
        if draw.random() < 0.3:
            del state[key]
        else:
            state[key] = draw.choice(odd)
        checkpoint.write_checkpoint(folder, state)
        problem = ""
        try:
            lf.train.fit(
                tiny(), recipe=RECIPE, data=arrays(), output=folder, device="cpu", quiet=True, workers=0, resume=True
            )
        except ValueError as error:
            problem = str(error)
        assert not problem or "checkpoint" in problem, f"case {case}: {problem}"
        assert "\n" not in problem, f"case {case}: {problem}"
        tally["refused" if problem else "went on"] += 1
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def folder_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on image files that stopped after one update."""
    root = tmp_path_factory.mktemp("run_file")
    data = picture_folder(root / "data")
    lf.train.fit(
        tiny(), recipe=RECIPE, data=str(data), teacher=tiny(1), output=root / "run", device="cpu", quiet=True,
        workers=0, max_updates=1, evaluate_every=0,
    )  # fmt: skip
    return root / "run"


ODD = (
    None, True, -1, 0, 1e308, -1e308, float("nan"), float("inf"), 10**400, "", "x", "pipe:touch hacked", "\0", "../..",
    [], [1], ["x"], {}, {"x": 1}, [[[]]], "9" * 5000,
)  # fmt: skip


def bent(run: dict[str, Any], draw: random.Random) -> Any:
    """The contents of run.json with something changed, missing or added, at any depth."""
    if draw.random() < 0.1:
        return draw.choice(ODD)
    place = run
    key = draw.choice(("recipe", "settings", "data", "objective", "teachers", "format"))
    if isinstance(place[key], dict) and draw.random() < 0.8:
        place, key = place[key], draw.choice([*place[key], "unknown"])
    if draw.random() < 0.15:
        place.pop(key, None)
    else:
        place[key] = draw.choice(ODD)
    return run


def test_a_bent_run_file_ends_in_one_line_or_in_settings_that_hold(
    folder_of_a_run, tmp_path, monkeypatch, tally: Counter[str]
):
    monkeypatch.chdir(tmp_path)
    text = (folder_of_a_run / "run.json").read_text()
    for case in range(CASES):
        draw = random.Random(f"run file {case}")
        content = json.dumps(bent(json.loads(text), draw))
        if draw.random() < 0.2:
            content = damaged(content.encode(), draw).decode(errors="replace")
        folder = tmp_path / "bent"
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_text(content)
        problem = ""
        try:
            run = read_run(folder)
            lf.train.Recipe.from_json(run["recipe"])
            assert not settings_of(run).allow_remote
        except ValueError as error:
            problem = str(error)
        assert "\n" not in problem, f"case {case}: {problem}"
        assert len(problem) < 1000, f"case {case}: {problem}"
        tally["refused" if problem else "read"] += 1


def test_resuming_a_bent_folder_ends_with_2_and_one_line(
    folder_of_a_run, tmp_path, monkeypatch, capsys, tally: Counter[str]
):
    monkeypatch.chdir(tmp_path)
    for case in range(min(CASES, 600) // 4):
        draw = random.Random(f"resumed {case}")
        folder = tmp_path / "copy"
        shutil.copytree(folder_of_a_run, folder)
        run = bent(json.loads((folder / "run.json").read_text()), draw)
        (folder / "run.json").write_text(json.dumps(run))
        code = main(["train", "--resume", str(folder)])
        told = capsys.readouterr().err
        assert code in (0, 2), f"case {case}: {code}"
        assert code == 0 or told.count("\n") == 1, f"case {case}: {told}"
        tally["refused" if code else "done"] += 1
        shutil.rmtree(folder)
    assert not list(tmp_path.iterdir()), "a run file made files"


@pytest.mark.parametrize("source", ["wds/pipe:touch hacked; echo ", "wds/ pipe:touch hacked", "wds/http://x/y"])
def test_a_run_file_runs_no_command_even_if_it_allows_that_itself(
    folder_of_a_run, tmp_path, source, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "copy"
    shutil.copytree(folder_of_a_run, folder)
    run = json.loads((folder / "run.json").read_text())
    run["data"] = {"train": source, "val": source}
    run["settings"]["allow_remote"] = True
    (folder / "run.json").write_text(json.dumps(run))
    assert main(["train", "--resume", str(folder)]) == 2
    assert "--allow-remote" in capsys.readouterr().err
    assert not (tmp_path / "hacked").exists()


def test_the_command_line_runs_a_command_only_when_that_is_allowed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipe:touch hacked; echo ").mkdir()  # a folder of that name is a folder
    command = ["train", "vit", "--set", "depth=1", "--data", "wds/pipe:touch hacked; echo ", "--output", "run"]
    assert main([*command, "--device", "cpu", "--quiet"]) == 2
    (tmp_path / "pipe:touch hacked; echo ").rmdir()
    assert main([*command, "--device", "cpu", "--quiet"]) == 2
    assert "--allow-remote" in capsys.readouterr().err
    assert not (tmp_path / "hacked").exists()
    assert main([*command, "--device", "cpu", "--quiet", "--allow-remote"]) == 2  # no shards come out of that pipe
    assert (tmp_path / "hacked").exists()
    assert not (tmp_path / "run").exists()
