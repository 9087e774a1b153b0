"""Batches form as the two settings say, nothing waits without bound, and closing answers what waits."""

import time
import weakref

import pytest
import torch

from leanformer.serve import Batcher, Full, Limits

IMAGE = torch.ones(1, 2, 2)


def batcher(sizes: list[int], **options) -> Batcher:
    return Batcher(lambda batch: batch.sum((1, 2, 3)).tolist(), on_batch=sizes.append, **options)


def test_a_full_batch_leaves_at_once():
    sizes: list[int] = []
    made = batcher(sizes, max_batch=4, max_wait=60.0)
    start = time.monotonic()
    assert [future.result(timeout=10) for future in made.submit([IMAGE * i for i in range(4)])] == [0, 4, 8, 12]
    assert time.monotonic() - start < 10
    made.close()
    assert sizes == [4]


def test_a_lone_image_leaves_after_the_wait():
    sizes: list[int] = []
    made = batcher(sizes, max_batch=4, max_wait=0.1)
    start = time.monotonic()
    assert made.submit([IMAGE])[0].result(timeout=10) == 4
    assert time.monotonic() - start >= 0.1
    made.close()
    assert sizes == [1]


def test_more_images_than_a_batch_holds_go_in_several():
    sizes: list[int] = []
    made = batcher(sizes, max_batch=4, max_wait=0.05)
    assert len([future.result(timeout=10) for future in made.submit([IMAGE] * 10)]) == 10
    made.close()
    assert sizes == [4, 4, 2]


def test_a_request_that_does_not_fit_leaves_no_image_behind():
    made = batcher([], max_batch=64, max_wait=60.0, queue=4)
    made.submit([IMAGE] * 3)
    with pytest.raises(Full, match="3 images wait"):
        made.submit([IMAGE] * 2)
    assert len(made) == 3
    made.close()


def test_a_request_that_is_alone_is_taken_whatever_its_bytes():
    made = batcher([], max_batch=64, max_wait=60.0, max_bytes=40)
    made.submit([IMAGE] * 3)
    with pytest.raises(Full, match="3 images of 48 bytes wait"):
        made.submit([IMAGE])
    assert len(made) == 3
    made.close()


def test_images_that_are_answered_do_not_stay_in_memory_until_the_next_ones_come():
    made = Batcher(lambda images: [0] * len(images), max_wait=0.0, join=list)
    image = IMAGE.clone()
    gone = weakref.ref(image)
    assert made.submit([image])[0].result(timeout=10) == 0
    del image
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None
    made.close()


def test_closing_answers_what_waits_and_takes_nothing_new():
    made = batcher([], max_batch=64, max_wait=60.0)
    futures = made.submit([IMAGE] * 3)
    made.close()
    assert [future.result(timeout=0) for future in futures] == [4, 4, 4]
    with pytest.raises(Full, match="shutting down"):
        made.submit([IMAGE])
    assert not made.alive


@pytest.mark.parametrize("wrong", [{"body": 0}, {"seconds": -1}, {"seconds": float("nan")}, {"queue": 2, "images": 4}])
def test_limits_that_would_refuse_everything_are_refused(wrong):
    with pytest.raises(ValueError, match="give"):
        Limits(**wrong)
