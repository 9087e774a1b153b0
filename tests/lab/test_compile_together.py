"""Jobs prepare at the same time and are measured one after another; one that fails costs no other."""

import os
import time
from functools import partial
from itertools import pairwise

from lab.turns import in_turn


def job(what, ready):
    if what == "bad":
        raise ValueError("bad")
    if what == "dies":
        os._exit(3)
    prepared = time.time()
    ready()
    start = time.time()
    time.sleep(0.05)
    return what, prepared, start, time.time()


def test_jobs_wait_for_all_to_be_ready_and_then_take_turns():
    found = [result for _, result in in_turn([partial(job, name) for name in ("a", "b", "c")], workers=3)]
    assert [result[0] for result in found] == ["a", "b", "c"]
    assert max(result[1] for result in found) <= min(result[2] for result in found)
    assert all(first[3] <= second[2] for first, second in pairwise(found))


def test_a_job_that_fails_costs_no_other():
    names = ("bad", "a", "dies", "b")
    found = [result for _, result in in_turn([partial(job, name) for name in names], workers=2)]
    assert [result and result[0] for result in found] == [None, "a", None, "b"]
