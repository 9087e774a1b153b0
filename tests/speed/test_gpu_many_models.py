"""Many optimised models in one process: made, captured, dropped and called, with odd images among the inputs.

Twenty times in one process, and once under a checker of memory:

    F=tests/speed/test_gpu_many_models.py
    python -m pytest -n 0 --keep-duplicates $(yes $F | head -20)
    TORCHINDUCTOR_COMPILE_THREADS=1 compute-sanitizer --tool memcheck --error-exitcode 9 python -m pytest -n 0 $F

The allocator lays many tensors into one piece of memory, in which the checker sees no border. The kernels alone can run
without it, for no graph is captured there:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 python -m pytest -n 0 $F -k kernels
"""

import gc
import threading

import pytest
import timm
import torch
from helpers import randomise

import leanformer as lf
from leanformer.core import AnyRewrite, plain_of
from leanformer.speed import rewritten

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SMALL = {"depth": 4, "num_classes": 10}
MAPS = {"depths": (1, 1, 1, 1), "num_classes": 10}
KINDS = {
    "evit": lambda: lf.apply(lf.create("deit_tiny_patch16_224", **SMALL), lf.EViT(keep_rate=0.7, at=(1, 2))),
    "both": lambda: lf.apply(lf.create("deit_tiny_patch16_224", **SMALL), lf.RePa(), lf.EViT(keep_rate=0.5, at=(1, 2))),
    "tome": lambda: lf.apply(lf.create("deit_tiny_patch16_224", **SMALL), lf.ToMe(merged=16)),
    "sit": lambda: lf.apply(lf.create("deit_tiny_patch16_224", **SMALL), lf.SiT(at=(1, 2))),
    "pooling": lambda: lf.create("poolformer_s12", **MAPS),
    "riformer": lambda: lf.apply(lf.create("poolformer_s12", **MAPS), lf.RIFormer()),
    "riformer, repa": lambda: lf.apply(lf.create("poolformer_s12", **MAPS), lf.RIFormer(), lf.RePa(idle_ratio=0.75)),
}
MANY = 64
"""Images from which on tokens are reorganised in one pass."""


@pytest.fixture(autouse=True)
def every_step_without_a_search(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(AnyRewrite, "pays", lambda step, chip, model: step.pays_for(model))


def fused(kind: str) -> torch.nn.Module:
    return lf.fuse(randomise(KINDS[kind]()).eval())


def made(kind: str, batch: int) -> torch.nn.Module:
    return lf.optimize(fused(kind), device="cuda", batch=batch, search=False)


def odd_images(batch: int) -> list[torch.Tensor]:
    """Constant images, whose patches all tie, images that are not numbers, and both among random ones."""
    constant, nothing = torch.full((batch, 3, 224, 224), 0.5), torch.full((batch, 3, 224, 224), float("nan"))
    mixed = torch.randn(batch, 3, 224, 224)
    mixed[0] = 0
    mixed[-1, :, 100:] = float("nan")
    return [each.cuda() for each in (constant, nothing, mixed, torch.full_like(constant, float("inf")))]


def answer_odd_images(model: torch.nn.Module, batch: int, dtype: torch.dtype = torch.float32) -> None:
    """What is no number stays in the answer of its own image."""
    with torch.inference_mode():
        constant, nothing, mixed, _ = (model(images.to(dtype)) for images in odd_images(batch))
    torch.cuda.synchronize()
    assert constant.isfinite().all()
    assert nothing.isnan().all()
    assert mixed[:-1].isfinite().all()
    assert mixed[-1].isnan().all()


def check(fast: torch.nn.Module, batch: int) -> None:
    answer_odd_images(fast, batch)
    images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        truth = plain_of(fast)(images)
    each = (fast(images.cuda()).float().cpu() - truth).norm(dim=1) / truth.norm(dim=1)
    assert each.median() < 0.1  # images with near ties may choose other tokens


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_answer_odd_images_one_by_one(kind):
    fast = rewritten(fused(kind).cuda().bfloat16())
    for batch in (1, 3, MANY):
        answer_odd_images(fast, batch, torch.bfloat16)


def test_models_made_captured_dropped_and_called_in_one_process_keep_answering():
    alive: list[tuple[torch.nn.Module, int]] = []
    for turn in range(3):
        for kind in KINDS:
            batch = (1, 4, MANY)[turn]
            alive.append((made(kind, batch), batch))
            if len(alive) > 3:
                del alive[turn % 2]
                gc.collect()
                torch.cuda.empty_cache()
            for fast, size in alive:
                check(fast, size)
        torch._dynamo.reset()  # what compilers hold is gone; what graphs replay must not be
        gc.collect()
        torch.cuda.empty_cache()
        noise = [torch.full((64, 2**18), 7.0, device="cuda") for _ in range(4)]  # written over what was freed
        library = torch.compile(
            timm.create_model("vit_tiny_patch16_224", depth=2).cuda().eval(), mode="reduce-overhead"
        )
        with torch.inference_mode():
            for _ in range(4):
                library(torch.randn(1, 3, 224, 224, device="cuda"))
        del noise
        for fast, size in alive:
            check(fast, size)


def test_a_graph_answers_after_everything_else_that_knew_the_model_is_gone():
    fast = made("evit", 2)
    images = torch.randn(2, 3, 224, 224, device="cuda")
    truth, replay = fast(images), fast.on(images)
    del fast
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    noise = [torch.full((64, 2**18), 7.0, device="cuda") for _ in range(4)]
    for _ in range(20):
        found = replay()
    torch.cuda.synchronize()
    assert torch.equal(found, truth)
    assert len(noise) == 4


def test_smaller_batches_are_padded_and_larger_ones_compiled():
    fast = made("evit", 4)
    images = torch.randn(6, 3, 224, 224, device="cuda")
    whole = fast(images)
    assert whole.shape[0] == 6
    for batch in (1, 3, 4):
        found = fast(images[:batch])
        assert found.shape[0] == batch
        each = (found.float() - whole[:batch].float()).norm(dim=1) / whole[:batch].float().norm(dim=1)
        assert each.median() < 0.05


def test_calls_on_several_streams_wait_for_each_other():
    fast = made("evit", MANY)
    given = [torch.randn(MANY, 3, 224, 224, device="cuda") for _ in range(4)]
    truth = [fast(images) for images in given]
    wrong: list[int] = []

    def call(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found = fast(given[number])
                torch.cuda.current_stream().synchronize()
                if not torch.equal(found, truth[number]):
                    wrong.append(number)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
