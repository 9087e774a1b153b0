"""Token labelling: values and gradients against plain loops, annotators of every kind, label maps on disk, and fit."""

import json
import math

import numpy as np
import pytest
import timm
import torch
from helpers import randomise
from timm.data import create_transform
from torch import Tensor

import leanformer as lf
from leanformer.core import Step, View, decision_paths, kept_patches, taps
from leanformer.data.batches import Plan
from leanformer.data.label_maps import Place, crop_labels
from leanformer.layers.mix_token import Dense
from leanformer.train import Annotator, LabelMaps, TokenLabelled, TokenLabels, with_places, write_label_maps
from leanformer.train.token_labels import mix_labels, mix_targets, soft_targets, token_loss

CLASSES = 5
TINY = {"img_size": 64, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": CLASSES}


def student(*methods, **arguments):
    torch.manual_seed(0)
    return lf.apply(randomise(lf.create("lvvit", **{**TINY, **arguments})), *methods)


def entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy of one token, class by class."""
    total = sum(torch.exp(logits[k]) for k in range(CLASSES))
    return -sum(label[k] * torch.log(torch.exp(logits[k]) / total) for k in range(CLASSES))


def random_labels(*shape: int) -> Tensor:
    return torch.rand(*shape, CLASSES).softmax(-1)


@pytest.mark.parametrize("dropped", [False, True])
def test_token_loss_is_the_mean_over_labelled_tokens_in_value_and_gradient(dropped: bool):
    logits = torch.randn(2, 4, CLASSES, requires_grad=True)
    labels = random_labels(2, 6 if dropped else 4)
    kept = torch.tensor([[5, 0, -1], [2, -1, 4]]) if dropped else None
    pairs = [(b, t, t if kept is None else int(kept[b, t])) for b in range(2) for t in range(4 if kept is None else 3)]
    pairs = [pair for pair in pairs if pair[2] >= 0]
    expected = sum(entropy(logits[b, t], labels[b, n]) for b, t, n in pairs) / len(pairs)
    (wanted,) = torch.autograd.grad(expected, logits)
    loss = token_loss(logits, labels, kept)
    (found,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found, wanted)
    if dropped:
        assert not found[:, 3].any()  # a token behind those that are listed
        assert not found[0, 2].any()  # a fused token


def test_token_loss_refuses_to_guess_which_patches_are_left():
    with pytest.raises(ValueError, match="3 patch tokens for 4 labels"):
        token_loss(torch.zeros(1, 3, CLASSES), random_labels(1, 4))


def test_mixing_labels_is_the_same_as_unmixing_answers():
    """The published code swaps the answers of the box back; the same pairs of answer and label meet here."""
    dense, labels = torch.randn(4, 6, CLASSES), random_labels(4, 6)
    mixed = torch.tensor([False, True, True, False, True, False])
    unmixed = torch.stack([dense.flip(0)[:, n] if mixed[n] else dense[:, n] for n in range(6)], dim=1)
    torch.testing.assert_close(token_loss(dense, mix_labels(labels, mixed)), token_loss(unmixed, labels))
    targets = random_labels(4)
    for b in range(4):
        torch.testing.assert_close(mix_targets(targets, mixed)[b], 0.5 * targets[b] + 0.5 * targets[3 - b])


def test_soft_targets_are_smoothed_one_hots():
    torch.testing.assert_close(soft_targets(torch.tensor([1]), 4, 0.2), torch.tensor([[0.05, 0.85, 0.05, 0.05]]))
    soft = random_labels(2)
    assert torch.equal(soft_targets(soft, CLASSES), soft)


def step_of(model, objective: TokenLabels, targets: Tensor, annotated: Tensor | None = None) -> Step:
    objective.prepare(model)
    model.train()
    images = torch.randn(len(targets), 3, 64, 64)
    torch.manual_seed(1)  # of a box that holds two of the patches
    with taps(model, objective.student_taps()) as seen:
        output = model(images)
    teachers = {} if annotated is None else {"annotator": View(annotated)}
    return Step(images, targets, View(output, dict(seen)), teachers)


def test_objective_is_class_loss_and_half_of_the_patch_loss():
    objective, model = TokenLabels(), student()
    annotated = torch.randn(2, 4, 4, CLASSES)
    step = step_of(model, objective, torch.tensor([1, 3]), annotated)
    answer = step.student.output
    assert isinstance(answer, Dense)
    assert 0 < answer.mixed.sum() < 16
    terms = objective(step)
    labels = annotated.flatten(1, 2).softmax(-1)
    share = int(answer.mixed.sum()) / 16
    classes, patches = torch.zeros(()), torch.zeros(())
    for b, label in enumerate((1, 3)):
        target = torch.zeros(CLASSES)
        target[label] += 1 - share
        target[(3, 1)[b]] += share
        classes = classes + entropy(answer.logits[b], target) / 2
        for n in range(16):
            patches = patches + entropy(answer.dense[b, n], labels[1 - b if answer.mixed[n] else b, n]) / 32
    torch.testing.assert_close(terms["class_label"], classes)
    torch.testing.assert_close(terms["token_labels"], 0.5 * patches)
    sum(terms.values()).backward()
    assert model.aux_head.weight.grad.abs().max() > 0
    assert model.head.weight.grad.abs().max() > 0


def test_maps_of_another_size_are_resized_to_the_students_plane():
    objective = TokenLabels(mix_token=False, class_labels="annotator")
    step = step_of(student(), objective, torch.tensor([1, 3]), torch.ones(2, 2, 3, CLASSES) * torch.arange(CLASSES))
    uniform = torch.arange(CLASSES).float().softmax(-1)
    answer = step.student.output
    terms = objective(step)
    torch.testing.assert_close(terms["token_labels"], 0.5 * token_loss(answer.dense, uniform.expand(2, 16, -1)))
    torch.testing.assert_close(terms["class_label"], token_loss(answer.logits[None], uniform.expand(1, 2, -1)))


def test_only_the_patches_that_remain_have_labels():
    model, objective = student(lf.EViT.finetune(keep_rate=0.5, at=(1, 2))), TokenLabels(mix_token=False)
    annotated = torch.randn(2, 4, 4, CLASSES)
    model.patch_embed.eval()  # so that the same pass can be repeated below
    objective.prepare(model)
    for method in lf.card_of(model).methods:
        method.advance(model, math.inf)
    model.train()
    for module in model.patch_embed.modules():
        module.eval()
    images = torch.randn(2, 3, 64, 64)
    with taps(model, objective.student_taps()) as seen:
        output = model(images)
    assert set(seen) == set(decision_paths(model))
    step = Step(images, torch.tensor([0, 1]), View(output, dict(seen)), {"annotator": View(annotated)})
    kept = kept_patches(model.eval(), images)[-1]
    assert output.dense.shape[1] == kept.shape[1] < 16
    assert (kept == -1).any()
    labels = annotated.flatten(1, 2).softmax(-1)
    known = [(b, t) for b in range(2) for t in range(kept.shape[1]) if kept[b, t] >= 0]
    expected = sum(entropy(output.dense[b, t], labels[b, kept[b, t]]) for b, t in known) / len(known)
    torch.testing.assert_close(objective(step)["token_labels"], 0.5 * expected)


def test_students_without_a_label_for_each_token_are_refused():
    with pytest.raises(ValueError, match="no token-label head"):
        TokenLabels().prepare(lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=1))
    with pytest.raises(ValueError, match="no token-label head"):
        TokenLabels().prepare(student(aux="none"))
    model = student()
    objective = TokenLabels()
    step = step_of(model, objective, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="a teacher called 'annotator'"):
        objective(step)
    step.student.output = torch.zeros(2, CLASSES)
    with pytest.raises(ValueError, match="answers with `Dense`"):
        objective(step)
    step = step_of(model, objective, torch.tensor([0, 1]), torch.zeros(2, CLASSES))
    with pytest.raises(ValueError, match=r"wrap it in train\.Annotator"):
        objective(step)
    with pytest.raises(ValueError, match="'targets' or 'annotator'"):
        TokenLabels(class_labels="both")


ANNOTATORS = {
    "resnet10t": ({}, (2, 2)),
    "convnext_atto": ({"depths": (1, 1, 1, 1)}, (2, 2)),
    "swin": (
        {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]},
        (8, 8),
    ),
    "vit": ({"img_size": (32, 48), "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}, (4, 6)),
    "mixer": ({"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_blocks": 1}, (4, 4)),
    "gfnet": ({"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1}, (4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", ANNOTATORS)
def test_annotators_of_every_layout_apply_their_head_place_by_place(name: str):
    arguments, size = ANNOTATORS[name]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=CLASSES, **arguments).eval()
    annotator = Annotator(model).eval()
    side = arguments.get("img_size", 64)
    x = torch.randn(2, 3, *((side, side) if isinstance(side, int) else side))
    with torch.no_grad():
        dense = annotator(x)
        features = model.forward_features(x)
    assert dense.shape == (2, *size, CLASSES)
    if features.ndim == 3:
        prefix = getattr(model, "num_prefix_tokens", 0)
        one = features[:1, prefix + size[1] + 1][:, None].expand(-1, prefix + 1, -1)
    else:
        one = features[:1, 1:2, 1:2] if features.shape[-1] == model.num_features else features[:1, :, 1:2, 1:2]
    torch.testing.assert_close(dense[:1, 1, 1], model.forward_head(one))


def test_an_lvvit_annotates_with_its_token_label_head():
    model, x = student().eval(), torch.randn(2, 3, 64, 64)
    expected = model.aux_head(model.forward_features(x)[:, 1:]).unflatten(1, (4, 4))
    torch.testing.assert_close(Annotator(model)(x), expected)


class Colours(torch.nn.Module):
    """An annotator that says what colour a place has: one class a channel."""

    def __init__(self):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 8, 8), "mean": (0.0,) * 3, "std": (1.0,) * 3}
        self.scale = torch.nn.Parameter(torch.tensor(10.0))

    def forward(self, images: Tensor) -> Tensor:
        colours = torch.nn.functional.avg_pool2d(images, 2).permute(0, 2, 3, 1)
        return self.scale * torch.cat([colours, torch.zeros_like(colours[..., :2])], -1)


def quarters() -> tuple[Tensor, Tensor]:
    """Images of 16 x 16 whose quarters are red, green, blue and black, each image turned differently."""
    image = torch.zeros(3, 16, 16, dtype=torch.uint8)
    image[0, :8, :8], image[1, :8, 8:], image[2, 8:, :8] = 255, 255, 255
    return torch.stack([torch.rot90(image, k, (1, 2)) for k in range(4)]), torch.arange(4)


@pytest.fixture
def maps(tmp_path) -> LabelMaps:
    data = lf.train.open_data(quarters())
    return LabelMaps(write_label_maps(Colours(), data, tmp_path / "maps", top=3, batch_size=3))


def test_label_maps_keep_the_highest_logits(maps: LabelMaps):
    assert len(maps) == 4
    assert maps.values.dtype == np.float16
    found = maps[[0]][0]
    assert found.shape == (CLASSES, 4, 4)
    assert found[0, 0, 0] == found[1, 0, 3] == found[2, 3, 0] == 10
    assert found[:, 3, 3].abs().max() == 0
    with pytest.raises(ValueError, match="maps of 4 images, not of image 7"):
        maps[[7]]
    with pytest.raises(ValueError, match="exists; choose another folder"):
        write_label_maps(Colours(), lf.train.open_data(quarters()), maps.folder)
    with pytest.raises(ValueError, match="holds no label maps"):
        LabelMaps(maps.folder / "nothing")


def test_crops_of_maps_follow_the_crop_and_the_flip(maps: LabelMaps):
    box = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.5, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 1.0]])
    flip = torch.tensor([False, False, True])
    dense, whole = crop_labels(maps[[0, 0, 0]], box, flip, (2, 2))
    assert dense.argmax(-1)[0, :3].tolist() == [0, 1, 2]
    assert dense.argmax(-1)[1].tolist() == [2, 2, 2, 2]
    assert dense.argmax(-1)[2].tolist() == [1, 0, 1, 0]
    torch.testing.assert_close(dense.sum(-1), torch.ones(3, 4))
    assert whole[1].argmax() == 2
    expected = torch.tensor([2.5, 2.5, 2.5, 0, 0]).softmax(0)  # each colour fills a quarter, of logit 10
    torch.testing.assert_close(whole[0], expected, rtol=0, atol=1e-3)


def test_places_say_where_an_image_comes_from():
    transform = create_transform(8, is_training=True, scale=(0.2, 0.8), color_jitter=None, mean=(0,) * 3, std=(1,) * 3)
    data = TokenLabelled(lf.train.open_data(quarters()), transform, seed=1)
    flips = set()
    for position in range(4):
        image, target = data[position]
        assert torch.equal(image, data[position][0])
        place = Place.of(target[None])
        source = quarters()[0][place.index[0]].float() / 255
        assert int(place.label) == int(place.index)
        top, left, tall, wide = (place.box[0] * 16).tolist()
        y, x = int(top + tall / 2), int(left + wide / 2)
        middle = image[:, 3:5, 3:5].mean((1, 2))
        around = source[:, max(0, y - 2) : y + 2, max(0, x - 2) : x + 2]
        assert around.amax((1, 2))[middle.argmax()] > 0 or middle.max() < 0.1
        flips.add(bool(place.flip))
    assert sorted(int(data[i][1][1]) for i in range(4)) == [0, 1, 2, 3]
    order = [int(data[i][1][1]) for i in range(4)]
    data.set_epoch(2)
    assert order != [int(data[i][1][1]) for i in range(4)]
    with pytest.raises(ValueError, match="ResizeKeepRatio moves the image"):
        data.transform = create_transform(8, is_training=True, train_crop_mode="rkrr")
    with pytest.raises(ValueError, match="need targets"):
        Place.of(torch.zeros(2, CLASSES))


def recipe(**settings):
    plain = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "crop_scale": (0.5, 1.0), "flip": 0.5}
    return lf.train.plain(**{**plain, **settings})


def test_fit_learns_from_label_maps(maps: LabelMaps):
    model = student(embed_dim=16, depth=1, img_size=32)
    data = with_places(quarters())
    objective = TokenLabels(labels=maps.folder, class_labels="annotator")
    result = lf.train.fit(model, recipe=recipe(), data=data, objective=objective, device="cpu", quiet=True, workers=0)
    assert result.updates == 2
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, CLASSES)


@pytest.mark.parametrize("setting", ["mixup", "cutmix", "label_smoothing"])
def test_labels_that_are_places_in_maps_are_neither_mixed_nor_smoothed(setting: str, maps: LabelMaps, tmp_path):
    mixed = recipe(**{setting: 0.1})
    spec = f"token_labels:labels={maps.folder}"
    with pytest.raises(ValueError, match=f"labels from maps go without {setting}: set {setting}=0") as caught:
        lf.train.fit(student(), recipe=mixed, data=quarters(), objective=spec, output=tmp_path / "run", device="cpu")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_labels_of_other_classes_than_the_students_are_refused(maps: LabelMaps):
    images, recipe = (torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.arange(8) % 3), lf.recipes.plain(epochs=1)
    other = lf.create("lvvit", img_size=32, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    same = {"recipe": recipe, "data": images, "device": "cpu", "quiet": True}
    with pytest.raises(ValueError, match=f"has labels of {maps.num_classes} classes, the student a head for 3: take"):
        lf.train.fit(other, objective=TokenLabels(labels=maps), **same)
    annotator = timm.create_model("resnet10t", num_classes=7)
    with pytest.raises(ValueError, match="the teacher 'annotator' has labels of 7 classes, the student a head for 3"):
        lf.train.fit(other, objective="token_labels", teacher={"annotator": annotator}, **same)


def test_the_published_recipes_of_token_labels_take_label_maps():
    found = [one.recipe for one in lf.recipes.PUBLISHED.values() if "token_labels" in one.recipe.objective]
    assert found
    model, data = student(), with_places(quarters())
    for each in found:
        lf.train.Task().mixing(each, Plan(each.batch_size, each.batch_size), model, data, lf.core.input_of(model))


def test_fit_learns_from_an_annotator_and_the_patch_loss_falls():
    images, labels = quarters()
    images = images.repeat(4, 1, 1, 1).repeat_interleave(2, 2).repeat_interleave(2, 3)  # (16, 3, 32, 32)
    model = student(embed_dim=16, depth=1, img_size=32)
    torch.manual_seed(1)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 1, "num_classes": CLASSES}
    annotator = Annotator(randomise(lf.create("vit", **sizes), seed=5, scale=0.5)).eval()
    x = (images.float() / 255 - 0.45) / 0.225

    @torch.no_grad()
    def patch_loss() -> float:
        maps = torch.nn.functional.interpolate(annotator(x).permute(0, 3, 1, 2), (2, 2), mode="bilinear")
        dense = model.eval().aux_head(model.forward_features(x)[:, 1:])
        return float(token_loss(dense, maps.flatten(2).transpose(1, 2).softmax(-1)))

    before = patch_loss()
    result = lf.train.fit(
        model, recipe=recipe(epochs=6, learning_rate=1e-2, mixup=0.8), data=(images, labels.repeat(4)),
        teacher={"annotator": annotator}, objective="token_labels:dense_weight=1.0", device="cpu", quiet=True,
    )  # fmt: skip
    assert result.updates == 24
    assert patch_loss() < before - 0.1


def test_the_head_that_inference_leaves_aside_learns_from_token_labels_all_the_same():
    model, objective = student(aux="unused"), TokenLabels(mix_token=False)
    assert not model.aux_head.weight.requires_grad
    step = step_of(model, objective, torch.tensor([1, 3]), torch.randn(2, 4, 4, CLASSES))
    sum(objective(step).values()).backward()
    assert model.aux_head.weight.grad.abs().max() > 0
    model.eval()
    tokens = model.forward_features(step.images)
    torch.testing.assert_close(model(step.images), model.head(tokens[:, 0]))


@pytest.mark.parametrize("name", ["lvvit_s", "lvvit_plus_small", "evit_lvvit_small_0.5", "repa_lvvit_s"])
def test_the_published_recipes_learn_from_an_annotator_and_the_dense_loss_falls(name: str, tmp_path):
    """A few epochs with the recipe's own objective; the annotator is a plain model, the only teacher."""
    images, labels = quarters()
    images = images.repeat(4, 1, 1, 1).repeat_interleave(2, 2).repeat_interleave(2, 3)  # (16, 3, 32, 32)
    published = lf.recipes.PUBLISHED[name]
    torch.manual_seed(0)
    model = published.build(img_size=32, embed_dim=16, depth=4, num_heads=2, num_classes=CLASSES)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 1, "num_classes": CLASSES}
    annotator = randomise(lf.create("vit", **sizes), seed=5, scale=0.5)
    short = recipe(epochs=8, learning_rate=1e-2, objective=published.recipe.objective)
    result = lf.train.fit(
        model, recipe=short, data=(images, labels.repeat(4)), teacher=annotator, output=tmp_path / "run",
        device="cpu", quiet=True, log_every=1,
    )  # fmt: skip
    assert result.updates == 32
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    dense = [line["token_labels"] for line in lines if "token_labels" in line]
    assert sum(dense[-8:]) < 0.97 * sum(dense[:8])
    assert lf.load(tmp_path / "run" / "annotator.teacher.safetensors").num_classes == CLASSES


def test_fit_reads_images_with_places_by_itself_where_labels_are_maps_and_goes_on(maps: LabelMaps, tmp_path):
    def run(folder, **settings):
        torch.manual_seed(0)
        model = student(embed_dim=16, depth=1, img_size=32)
        spec = f"token_labels:labels={maps.folder},class_labels=annotator,smoothing=0.1"
        return lf.train.fit(
            model, recipe=recipe(batch_size=2), data=quarters(), objective=spec, output=folder, device="cpu",
            quiet=True, workers=0, save_every=1, **settings,
        )  # fmt: skip

    whole = run(tmp_path / "whole")
    assert whole.updates == 4
    assert run(tmp_path / "parts", max_updates=3).updates == 3
    again = run(tmp_path / "parts", resume=True)
    assert again.updates == 4
    ours, theirs = (dict(result.model.named_parameters()) for result in (whole, again))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
