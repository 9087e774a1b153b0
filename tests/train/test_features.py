"""Features judged by neighbours and by a linear probe: as plain loops have it, for every form of a model."""

import json
import math

import pytest
import torch
from helpers import arrays, picture_folder, randomise, tiny
from torch.nn import functional as F

import leanformer as lf
from leanformer.cli import eval_work, main
from leanformer.train import Features, extract_features, knn_accuracy, linear_probe
from leanformer.train.evaluation import Conditions
from leanformer.train.features import feature_of
from leanformer.train.neighbours import neighbour_votes
from leanformer.train.probe import linear_weights

SIZES = ("img_size=16", "patch_size=8", "embed_dim=16", "depth=2", "num_heads=2")
MODEL = ["vit", *(word for each in SIZES for word in ("--set", each))]
RUN = ["--device", "cpu", "--workers", "0"]


def clouds(images: int, seed: int, channels: int = 6, classes: int = 3, spread: float = 0.5) -> Features:
    """Points around one centre a class."""
    centres = torch.randn(classes, channels, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(images) % classes
    noise = torch.randn(images, channels, generator=torch.Generator().manual_seed(seed))
    return Features(centres[labels] + spread * noise, labels)


@pytest.mark.parametrize("chunk", [1, 70, 2**20])
def test_votes_are_those_of_a_plain_loop_however_many_are_counted_at_a_time(chunk):
    bank, queries = clouds(23, 1), clouds(11, 2)
    votes = neighbour_votes(queries.vectors.double(), bank.vectors.double(), bank.labels, 3, 5, 0.07, chunk)
    for i, query in enumerate(queries.vectors.double()):
        near = sorted(((F.cosine_similarity(query, b, dim=0).item(), int(label))
                       for b, label in zip(bank.vectors.double(), bank.labels)), reverse=True)[:5]  # fmt: skip
        expected = [sum(math.exp((s - near[0][0]) / 0.07) for s, label in near if label == c) for c in range(3)]
        assert votes[i].tolist() == pytest.approx(expected, rel=1e-9)


def test_a_class_without_a_vote_is_no_answer_among_the_five():
    bank = Features(torch.eye(2), torch.tensor([0, 1]), classes=("a", "b", "c"))
    test = Features(torch.eye(2), torch.tensor([0, 2]), classes=("a", "b", "c"))
    assert knn_accuracy(bank, test, k=1).top5 == 50


def test_the_nearest_names_the_class_however_far_it_is_and_however_low_the_temperature():
    known = Features(torch.tensor([[-1.0, 0.0], [-1.0, 0.1]]), torch.tensor([0, 1]))
    asked = Features(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    for temperature in (0.07, 0.01, 1e-4):
        found = knn_accuracy(known, asked, k=2, temperature=temperature)
        assert (found.top1, found.top5) == (100, 100)


@pytest.mark.parametrize("judge", [lambda known, asked: knn_accuracy(known, asked, k=1), linear_probe])
def test_features_that_are_no_numbers_are_refused_instead_of_judged(judge):
    good, broken = clouds(12, 0), clouds(12, 1)
    broken.vectors[3] = math.nan
    for known, asked in ((good, broken), (broken, good)):
        with pytest.raises(ValueError, match="the features of 1 of 12 images are infinite or no numbers"):
            judge(known, asked)


def test_linear_classifiers_of_a_sweep_are_those_of_torch_sgd_one_by_one():
    data, rates, epochs = clouds(60, 1), (0.01, 0.3), 4
    found = linear_weights(data.vectors.double(), data.labels, 3, rates, epochs)  # batches of 6, in an order of its own
    order = torch.Generator().manual_seed(lf.data.draws.key_of(0, "probe") % 2**63)
    batches = [rows for _ in range(epochs) for rows in torch.randperm(60, generator=order).split(6)]
    for weight, rate in zip(found, rates):
        mine = torch.zeros(6, 3, dtype=torch.double, requires_grad=True)
        sgd = torch.optim.SGD([mine], lr=rate, momentum=0.9)
        for update, rows in enumerate(batches):
            sgd.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * update / len(batches))) / 2
            sgd.zero_grad()
            F.cross_entropy(data.vectors[rows].double() @ mine, data.labels[rows]).backward()
            sgd.step()
        assert torch.allclose(weight, mine, atol=1e-12)


def test_a_probe_finds_a_linear_rule_that_neighbours_do_not_see():
    """One channel of little variance knows the class, and thirty loud ones know nothing."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(900) % 2
    vectors = torch.randn(900, 31, generator=generator)
    vectors[:, 0] = 0.02 * (2 * labels - 1) + 0.002 * vectors[:, 0] + 5
    train, test = Features(vectors[:600], labels[:600]), Features(vectors[600:], labels[600:])
    probe = linear_probe(train, test)
    assert probe.top1 > 97
    assert knn_accuracy(train, test).top1 < 65
    assert probe.sweep[probe.rate] == max(probe.sweep.values())


def test_a_rate_that_diverges_is_not_taken():
    train, test = clouds(90, 1), clouds(60, 2)
    probe = linear_probe(train, test, rates=(3e38, 0.1), epochs=20)
    assert probe.rate == 0.1
    assert probe.top1 > 80


@pytest.mark.parametrize(
    "method", [lf.EViT(keep_rate=0.5), lf.ToMe(merged=1), lf.RePa(idle_ratio=0.5)], ids=lambda m: m.name
)
def test_a_feature_is_what_the_classifier_reads(method):
    model = randomise(lf.apply(tiny(), method)).eval()
    images = torch.randn(3, 3, 16, 16)
    assert torch.allclose(model.head(feature_of(model, images)), model(images), atol=1e-6)


def test_neighbours_of_the_fused_model_say_what_those_of_the_trained_one_say():
    model = randomise(lf.apply(tiny(), lf.RePa(idle_ratio=0.5))).eval()
    (images, labels), answers = arrays(64), []
    for form in (model, lf.fuse(model)):
        train = extract_features(form, (images[:48], labels[:48]), device="cpu")
        test = extract_features(form, (images[48:], labels[48:]), device="cpu")
        answers.append(neighbour_votes(test.vectors, train.vectors, train.labels, 4, 5))
    assert torch.allclose(*answers, rtol=1e-3)


def test_a_model_that_was_judged_has_every_module_in_the_mode_that_it_was_in():
    model = tiny().train()
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    with Conditions.on("cpu").judging(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before


def test_batches_that_are_filled_up_leave_no_feature_behind():
    images, labels = arrays(13)
    whole = extract_features(tiny(), (images, labels), device="cpu", batch_size=13)
    parts = extract_features(tiny(), (images, labels), device="cpu", batch_size=4)
    assert len(parts.vectors) == 13
    assert torch.equal(parts.labels, labels)
    assert torch.allclose(whole.vectors, parts.vectors, atol=1e-5)


def test_the_command_line_judges_a_model_without_a_head(tmp_path, capsys):
    folder, figures = picture_folder(tmp_path / "data"), tmp_path / "figures.json"
    judges = ["--knn", "3", "--linear", "--output", str(figures)]
    assert main(["eval", *MODEL, "--set", "num_classes=0", "--data", str(folder), *RUN, *judges]) == 0
    told = capsys.readouterr().out
    assert "3-NN" in told
    assert "taken" in told
    rows = json.loads(figures.read_text())["rows"]
    assert [row["judge"] for row in rows] == ["3-NN", "linear probe"]
    assert rows[0]["top1"] > 60, "each image of this val is in train too, and the nearest outvotes the others"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--knn", "0"], "--knn must be at least 1"),
        (["--knn", "99"], "k must be from 1 to the 32 images"),
        (["--knn", "3", "--train-split", "val"], "every image would find itself"),
    ],
)
def test_what_cannot_be_judged_is_refused(options, message, tmp_path, capsys):
    folder = picture_folder(tmp_path / "data")
    assert main(["eval", *MODEL, "--data", str(folder), *RUN, *options]) == 2
    assert message in capsys.readouterr().err


def test_features_are_not_computed_where_too_many_neighbours_are_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(eval_work, "extract_features", lambda *_, **__: pytest.fail("features were computed"))
    assert main(["eval", *MODEL, "--data", str(picture_folder(tmp_path)), *RUN, "--knn", "99"]) == 2
    assert "k must be from 1 to the 32 images" in capsys.readouterr().err


def test_features_of_images_without_labels_are_told_to_have_none(tmp_path, capsys):
    photographs = picture_folder(tmp_path) / "train"
    assert main(["eval", *MODEL, "--data", f"images:{photographs}", *RUN, "--knn", "3"]) == 2
    assert "has no labels, so there is no accuracy to tell" in capsys.readouterr().err
