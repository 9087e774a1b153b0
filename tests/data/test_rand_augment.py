"""RandAugment of batches does to each image what timm's does to a picture."""

import numpy as np
import pytest
import torch
from helpers import arrays, tiny
from PIL import Image
from timm.data import auto_augment

import leanformer as lf
from leanformer.data.augment import Augment
from leanformer.data.pictures import pipeline
from leanformer.data.rand_augment import OPERATIONS, RandAugment, one_layer

EXACT = [name for name in OPERATIONS if not name.startswith(("Rotate", "Shear", "Translate"))]


def _photograph(seed: int, height: int = 24, width: int = 32) -> torch.Tensor:
    noise = np.random.RandomState(seed).randint(40, 220, (4, 5, 3)).astype(np.uint8)
    picture = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float()


def _by_timm(
    image: torch.Tensor, name: str, level: float, negative: bool, increasing: bool, monkeypatch
) -> torch.Tensor:
    monkeypatch.setattr(auto_augment.random, "random", lambda: 0.9 if negative else 0.1)
    written = f"{name}Increasing" if increasing and f"{name}Increasing" in auto_augment.NAME_TO_OP else name
    hparams = {"img_mean": (128, 128, 128), "interpolation": Image.Resampling.BILINEAR}
    op = auto_augment.AugmentOp(written, prob=1.0, magnitude=10 * level, hparams=hparams)
    picture = op(Image.fromarray(image.byte().permute(1, 2, 0).numpy()))
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float()


def _ours(images: torch.Tensor, name: str, level: float, negative: bool, increasing: bool) -> torch.Tensor:
    index = torch.full((len(images),), OPERATIONS.index(name))
    sign = torch.full((len(images),), negative)
    return one_layer(images, index, torch.full((len(images),), level), sign, increasing, bicubic=False)


@pytest.mark.parametrize("increasing", [True, False])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_timms(name, increasing, monkeypatch):
    images = torch.stack([_photograph(seed) for seed in range(2)] + [torch.full((3, 24, 32), 77.0)])
    for level, negative in ((0.9, True), (0.43, False)):
        ours = _ours(images, name, level, negative, increasing)
        theirs = torch.stack([_by_timm(image, name, level, negative, increasing, monkeypatch) for image in images])
        difference = (ours - theirs).abs()
        assert difference.max() <= 1 if name in EXACT else (difference > 1).float().mean() < 0.02, name
        assert difference.mean() < 0.5


def test_no_operation_leaves_the_images_as_they_are():
    images = torch.stack([_photograph(seed) for seed in range(4)])
    nothing = one_layer(images, torch.full((4,), -1), torch.ones(4), torch.zeros(4, dtype=torch.bool))
    assert torch.equal(nothing, images)


def test_an_image_gets_the_same_operations_in_any_batch():
    augment = RandAugment("rand-m9-mstd0.5-inc1")
    images = torch.stack([_photograph(seed) for seed in range(6)])
    together = augment(images, torch.arange(6), key=3)
    alone = torch.cat([augment(images[i : i + 1], torch.tensor([i]), key=3) for i in range(6)])
    assert torch.equal(together, alone)
    assert not torch.equal(together, augment(images, torch.arange(6), key=4))


def test_each_layer_touches_half_of_the_images():
    images = _photograph(0, 8, 8).expand(400, 3, 8, 8)
    changed = (RandAugment("rand-m9-n1")(images, torch.arange(400), key=0) != images).flatten(1).any(1)
    assert changed.float().mean() == pytest.approx(0.5, abs=0.08)
    assert RandAugment("rand-m9-n1-p0.0")(images, torch.arange(400), key=0).equal(images)


def test_a_recipes_randaugment_reaches_arrays():
    images = torch.stack([_photograph(seed) for seed in range(8)]).byte()
    plain = lf.recipes.plain()
    augments = [
        Augment(plain.replace(auto_augment=a), (24, 32), (0.5,) * 3, (0.5,) * 3) for a in (None, "rand-m9-p1.0")
    ]
    without, augmented = (augment(images, torch.arange(8), key=0) for augment in augments)
    assert (without != augmented).flatten(1).any(1).sum() > 4


def test_a_recipes_randaugment_reaches_files():
    config = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    steps = pipeline(lf.recipes.Recipe(auto_augment="rand-m7-n3"), config).transforms
    (found,) = [step for step in steps if isinstance(step, auto_augment.RandAugment)]
    assert (found.num_layers, found.ops[0].magnitude) == (3, 7)


@pytest.mark.parametrize("policy", ["original", "augmix-m5", "rand-m9-t3a"])
def test_a_policy_that_arrays_do_not_know_is_refused(policy):
    recipe = lf.recipes.plain(auto_augment=policy, batch_size=8)
    with pytest.raises(ValueError, match=f"auto_augment={policy} is not made for images kept as arrays"):
        lf.train.fit(tiny(), recipe=recipe, data=arrays(), device="cpu", quiet=True)
