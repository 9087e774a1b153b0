"""A run that was killed, stopped or starved goes on to the same weights as one that was not."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
import survival
import torch
from survival import RECIPE, arrays, in_process, picture_folder, run, tiny

import leanformer as lf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], Path]:
    """The weights of the uninterrupted run, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = run(str(folder))
    assert result.finished
    assert result.updates == 12
    return _weights(result), folder


def _weights(result) -> dict[str, torch.Tensor]:
    both = {"model": result.model, "ema": result.ema}
    return {f"{name}.{key}": value for name, model in both.items() for key, value in model.state_dict().items()}


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_the_same_run_twice_gives_the_same_weights(whole, tmp_path):
    assert _same(whole[0], _weights(run(str(tmp_path / "run"))))


def test_training_changes_the_weights(whole):
    fresh = {f"model.{key}": value for key, value in tiny().state_dict().items()}
    assert not any(torch.equal(whole[0][key], value) for key, value in fresh.items() if key.endswith("weight"))


@pytest.mark.parametrize("update", [0, 5, 11])
def test_killed_at_any_update_and_resumed_gives_the_same_weights(whole, tmp_path, update):
    folder = str(tmp_path / "run")
    assert in_process(survival.killed_at, folder, update) == -9
    result = run(folder, resume=True)
    assert result.updates == 12
    assert _same(whole[0], _weights(result))


@pytest.mark.exhaustive
def test_killed_at_fifty_random_moments_and_resumed_gives_the_same_weights(whole, tmp_path):
    """SIGKILL by the clock, wherever the run happens to be; what is left is taken up again, and killed again."""
    moments, kills, runs, start = random.Random(0), 0, 0, time.perf_counter()
    assert in_process(survival.begun_or_resumed, str(tmp_path / "timed")) == 0
    seconds = time.perf_counter() - start
    while kills < 50:
        folder, runs = tmp_path / f"run{runs}", runs + 1
        while survival.killed_after(str(folder), seconds * moments.uniform(0, 1.2)):
            kills += 1
        assert _same(whole[0], _weights(run(str(folder), resume=True))), f"run {runs} after {kills} kills"
    print(f"{kills} kills in {runs} runs, every one of them bit for bit the run that was not killed")


def test_killed_while_a_checkpoint_is_written_and_resumed_gives_the_same_weights(whole, tmp_path):
    folder = str(tmp_path / "run")
    assert in_process(survival.killed_while_writing, folder, 3) == -9
    assert list(Path(folder).glob(".checkpoint*")), "the half-written file should still lie there"
    result = run(folder, resume=True)
    assert _same(whole[0], _weights(result))
    assert not list(Path(folder).glob(".checkpoint*"))


def test_killed_between_the_renames_of_a_checkpoint_the_one_before_is_used(whole, tmp_path):
    folder = str(tmp_path / "run")
    assert in_process(survival.killed_between_renames, folder) == -9
    assert not (Path(folder) / "checkpoint.pt").exists()
    assert _same(whole[0], _weights(run(folder, resume=True)))


def test_a_damaged_checkpoint_gives_way_to_the_one_before(whole, tmp_path):
    folder = tmp_path / "run"
    run(str(folder), max_updates=8)
    newest = folder / "checkpoint.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert _same(whole[0], _weights(run(str(folder), resume=True)))


def test_two_damaged_checkpoints_are_an_error_that_names_them(tmp_path):
    run(str(tmp_path / "run"), max_updates=4)
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read"):
        run(str(tmp_path / "run"), resume=True)


def test_sigterm_saves_and_exits_cleanly_and_the_run_goes_on(whole, tmp_path):
    folder = str(tmp_path / "run")
    assert in_process(survival.terminated_at, folder, 4) == 0
    assert lf.train.checkpoint.read_checkpoint(Path(folder))["update"] == 5
    assert _same(whole[0], _weights(run(folder, resume=True)))


def test_a_signal_in_the_last_update_ends_what_the_run_is_a_part_of(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        assert run(str(tmp_path / "run"), extra=survival.At(2 * 12, survival.terminate)).finished
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_full_disk_ends_with_a_clear_error_and_the_last_checkpoint_whole(whole, tmp_path):
    folder = tmp_path / "run"
    assert in_process(survival.starved, str(folder), 6000) == 3
    assert "cannot write" in Path(f"{folder}.told").read_text()
    assert lf.train.checkpoint.read_checkpoint(folder)["update"] == 4
    assert _same(whole[0], _weights(run(str(folder), resume=True)))


def test_a_resumed_run_does_not_need_the_generators_of_the_process_that_saved(whole, tmp_path, monkeypatch):
    """A checkpoint holds those of one process, and all processes read it; noise that erases images is drawn too."""
    assert RECIPE.erasing > 0
    run(str(tmp_path / "run"), max_updates=5)
    monkeypatch.setattr("leanformer.train.state.set_rng_state", lambda state: torch.manual_seed(99))
    assert _same(_weights(run(str(tmp_path / "run"), resume=True)), whole[0])


def test_killed_and_resumed_on_image_files_gives_the_same_weights(tmp_path):
    data = str(picture_folder(tmp_path / "data"))
    straight = run(str(tmp_path / "straight"), data)
    assert in_process(survival.killed_at, str(tmp_path / "killed"), 5, data) == -9
    assert _same(_weights(straight), _weights(run(str(tmp_path / "killed"), data, resume=True)))


def test_resuming_logs_every_update_once(whole, tmp_path):
    folder = tmp_path / "run"
    assert in_process(survival.killed_at, str(folder), 7) == -9
    run(str(folder), resume=True)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if line["kind"] == "step"] == list(range(1, 13))
    first = [json.loads(line) for line in (whole[1] / "log.jsonl").read_text().splitlines()]
    losses = [[line["loss"] for line in log if line["kind"] == "step"] for log in (first, lines)]
    assert losses[0] == losses[1]


def test_a_second_run_into_the_same_folder_is_refused(whole):
    with pytest.raises(ValueError, match="already holds a run"):
        run(str(whole[1]))


def test_resuming_with_another_recipe_is_refused(tmp_path):
    run(str(tmp_path / "run"), max_updates=2)
    with pytest.raises(ValueError, match=r"learning_rate was 0\.01, now 0\.5"):
        lf.train.fit(
            tiny(), recipe=RECIPE.replace(learning_rate=0.5), data=arrays(), output=tmp_path / "run", resume=True,
            device="cpu", quiet=True,
        )  # fmt: skip


def test_loading_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"format": 1, "update": 3, "evil": Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="can be read"):
        lf.train.checkpoint.read_checkpoint(tmp_path)
    assert not (tmp_path / "executed").exists()
