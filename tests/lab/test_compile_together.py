"""Jobs prepare at the same time and are measured one after another; one that fails costs no other."""

import multiprocessing
import os
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from lab import compile_together as compile_together_module
from lab.compile_together import compile_together, told


def job(what, ready):
    if what == "bad":
        raise ValueError("bad")
    if what == "dies":
        os._exit(3)
    if what == "refuses":
        return what, "why"
    prepared = time.time()
    ready()
    if what == "dies late":
        os._exit(3)
    start = time.time()
    time.sleep(0.05)
    return what, prepared, start, time.time()


def test_jobs_prepare_together_and_are_timed_in_turn_and_one_that_fails_costs_no_other():
    names = ("bad", "a", "dies", "b")
    found = [result for _, result in compile_together([partial(job, name) for name in names], workers=4)]
    assert [result and result[0] for result in found] == [None, "a", None, "b"]
    timed = [result for result in found if result]
    assert max(result[1] for result in timed) <= min(result[2] for result in timed)
    assert all(first[3] <= second[2] for first, second in pairwise(timed))


def test_a_job_that_ends_before_its_timing_tells_why_and_one_that_dies_in_it_costs_no_other():
    names = ("refuses", "dies late", "a")
    found = [result for _, result in compile_together([partial(job, name) for name in names], workers=3)]
    assert found[:2] == [("refuses", "why"), None]
    assert found[2][0] == "a"


def test_where_nothing_is_left_to_time_nobody_waits_for_the_file(tmp_path):
    jobs = [partial(job, name) for name in ("bad", "refuses")]
    found = [result for _, result in compile_together(jobs, workers=2, go=tmp_path / "never made")]
    assert found == [None, ("refuses", "why")]


def waits(what, ready):
    ready()
    return what


def test_a_process_that_dies_while_it_waits_for_its_turn_costs_no_other(monkeypatch):
    def kill(go):
        for process in multiprocessing.active_children()[:1]:
            process.kill()
            process.join()

    monkeypatch.setattr(compile_together_module, "wait_for", kill)
    found = [result for _, result in compile_together([partial(waits, name) for name in "abc"], workers=3)]
    assert found.count(None) == 1
    assert len(found) == 3


def test_progress_is_a_printed_line_once_a_result_was_taken_in(capsys):
    results = told([("first", 1), ("second", 2)], 2, str)
    assert next(results) == ("first", 1)
    assert capsys.readouterr().out == ""
    assert list(results) == [("second", 2)]
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == ["first", "second"]


def test_more_jobs_than_workers_all_run():
    names = ("a", "b", "c")
    assert [result[0] for _, result in compile_together([partial(job, name) for name in names], workers=2)] == [*names]


def test_what_is_compiled_is_timed_when_the_file_is_there(monkeypatch, tmp_path):
    quiet, waited = tmp_path / "quiet", []

    def wait(seconds):
        waited.append(time.time())  # a file's own time may lie some milliseconds back
        quiet.touch()

    monkeypatch.setattr(compile_together_module.time, "sleep", wait)
    jobs = [partial(job, name) for name in ("a", "b")]
    found = [result for _, result in compile_together(jobs, workers=2, go=quiet)]
    assert all(prepared < waited[0] < start for _, prepared, start, _ in found)


def lasting(folder, name, ready):
    (folder / name).write_text(str(os.getpid()))
    ready()
    if name == "slow":
        time.sleep(60)
    return name


def test_who_wants_no_more_results_leaves_no_process_behind(tmp_path):
    results = compile_together([partial(lasting, tmp_path, name) for name in ("quick", "slow")], workers=2)
    assert next(results)[1] == "quick"
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "slow").read_text()), 0)


def compiles_for_long(file, ready):
    for _ in range(600):
        file.write_text(str(time.monotonic()))
        time.sleep(0.1)


KILLED = """
import sys
from functools import partial
from pathlib import Path
from lab.compile_together import compile_together
from test_compile_together import compiles_for_long
if __name__ == "__main__":
    list(compile_together([partial(compiles_for_long, Path(sys.argv[1]))], workers=2))
"""


def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path):
    script, file = tmp_path / "killed.py", tmp_path / "pid"
    script.write_text(KILLED)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    started = subprocess.Popen([sys.executable, str(script), str(file)], env={**os.environ, "PYTHONPATH": paths})
    while not file.exists():
        assert started.poll() is None
        time.sleep(0.1)
    started.kill()
    started.wait()
    deadline = time.monotonic() + 20
    while wrote_within(1, file):
        assert time.monotonic() < deadline


def wrote_within(seconds, file):
    before = file.read_text()
    time.sleep(seconds)
    return file.read_text() != before
