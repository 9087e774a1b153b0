"""What a row says: classes, scores, embeddings, kept tokens, reasons."""

import json

import numpy as np
import pytest
import torch
from helpers import randomise, tiny
from pictures import same_rows, write_pictures

import leanformer as lf
from leanformer.data.view import EvaluationView

PIXELS = torch.randint(0, 256, (21, 3, 20, 20), generator=torch.Generator().manual_seed(0)).byte()


@pytest.fixture
def model() -> torch.nn.Module:
    return randomise(tiny()).eval()


@torch.no_grad()
def test_rows_are_what_the_model_answers_to_the_evaluation_view(model):
    rows = list(lf.predict(model, PIXELS, top=3, probabilities=True, device="cpu"))
    expected = model(EvaluationView(lf.core.input_of(model))(PIXELS)).softmax(-1)
    torch.testing.assert_close(torch.tensor(np.stack([row["probabilities"] for row in rows])), expected)
    assert [row["class"] for row in rows] == expected.argmax(1).tolist()
    assert [row["top_classes"].tolist() for row in rows] == expected.topk(3).indices.tolist()
    assert [row["score"] for row in rows] == [row["top_scores"][0] for row in rows]
    assert [row["name"] for row in rows] == [f"class {row['class']}" for row in rows]
    assert [row["path"] for row in rows] == [str(index) for index in range(21)]


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_embeddings_are_the_features_before_the_head(model, dtype):
    rows = list(lf.predict(model, PIXELS, embed=dtype, device="cpu"))
    seen = EvaluationView(lf.core.input_of(model))(PIXELS)
    expected = model.forward_head(model.forward_features(seen), pre_logits=True)
    found = np.stack([row["embedding"] for row in rows])
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected.numpy(), rtol=2e-3 if dtype == "float16" else 1e-4, atol=1e-3)
    plain = list(lf.predict(model, PIXELS, device="cpu"))
    assert [row["class"] for row in rows] == [row["class"] for row in plain]


def test_embeddings_alone_leave_classes_out(model):
    assert [each.name for each in lf.predict(model, PIXELS, top=0, embed=True, device="cpu").fields] == ["embedding"]


def test_a_model_with_two_heads_gives_embeddings_without_classes():
    model = lf.create("deit_tiny_distilled_patch16_224", img_size=32, depth=1, num_classes=4)
    with pytest.raises(ValueError, match="give top=0 for embeddings alone"):
        list(lf.predict(model, PIXELS, embed=True, device="cpu"))
    row = next(iter(lf.predict(model, PIXELS, embed=True, top=0, device="cpu")))
    assert row["embedding"].shape == (192,)


def test_kept_maps_name_the_patches_that_are_left(model):
    lean = lf.apply(lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2), lf.EViT())
    rows = list(lf.predict(lean, PIXELS, kept=True, top=1, device="cpu"))
    seen = EvaluationView(lf.core.input_of(lean))(PIXELS)
    for row, patches in zip(rows, lf.kept_patches(lean.eval(), seen)[-1].tolist()):
        left = {patch: token for token, patch in enumerate(patches) if patch >= 0}
        assert {patch: token for patch, token in enumerate(row["kept"].tolist()) if token >= 0} == left


def test_kept_maps_are_refused_where_no_token_is_dropped(model):
    with pytest.raises(ValueError, match=r"apply one that does first"):
        list(lf.predict(model, PIXELS, kept=True, device="cpu"))


def test_a_short_last_batch_and_processes_change_nothing(model, tmp_path):
    write_pictures(tmp_path, 13)
    alone = list(lf.predict(model, tmp_path, batch_size=4, workers=0, device="cpu"))
    assert same_rows(alone, list(lf.predict(model, tmp_path, batch_size=4, workers=2, device="cpu")))


def test_an_unreadable_picture_is_a_row_with_its_reason(model, tmp_path):
    paths = write_pictures(tmp_path, 12, bad=(3, 7))
    paths[5].unlink()
    answers = lf.predict(model, [*paths], batch_size=5, device="cpu")
    rows = list(answers)
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    errors = {index: row["error"] for index, row in enumerate(rows) if row["error"]}
    assert errors == {
        3: "not a picture of a known format",
        5: "FileNotFoundError: No such file or directory",
        7: "not a picture of a known format",
    }
    assert rows[3]["class"] is None
    assert answers.report.failed == 3
    good = list(lf.predict(model, [path for index, path in enumerate(paths) if index not in errors], device="cpu"))
    assert [row["class"] for row in rows if not row["error"]] == [row["class"] for row in good]


def test_an_answer_that_is_no_number_is_a_row_with_its_reason(model):
    model.head.bias.data[0] = float("nan")
    assert next(iter(lf.predict(model, PIXELS, device="cpu")))["error"] == "the model's answer is not a finite number"


def test_rows_are_computed_when_they_are_asked_for(model, tmp_path):
    paths = write_pictures(tmp_path, 8)
    batches = lf.predict(model, tmp_path, batch_size=2, workers=0, device="cpu").batches()
    assert next(batches).first == 0
    for path in paths[4:]:
        path.unlink()
    assert [error for batch in batches for error in batch.errors].count(None) == 2


def test_a_data_frame_has_one_row_a_picture(model):
    frame = lf.predict(model, PIXELS, embed=True, device="cpu").to_pandas()
    assert len(frame) == 21
    assert frame["embedding"][0].shape == (16,)


def test_the_shares_of_time_make_up_the_whole(model):
    answers = lf.predict(model, PIXELS, device="cpu")
    list(answers)
    assert set(answers.report.shares) == {"reading", "decoding", "transfer", "model", "writing"}
    assert sum(answers.report.shares.values()) == pytest.approx(1)
    assert "bounded by" in str(answers.report)


def test_names_of_classes_come_from_the_call_or_the_card(model):
    names = ["ant", "bee", "cat", "dog"]
    row = next(iter(lf.predict(model, PIXELS, classes=names, device="cpu")))
    assert row["name"] == names[row["class"]]
    carded = lf.core.card.set_classes(model, names)
    assert next(iter(lf.predict(carded, PIXELS, device="cpu")))["name"] == row["name"]
    with pytest.raises(ValueError, match="3 names of classes were given, but the model has 4"):
        list(lf.predict(model, PIXELS, classes=names[:3], device="cpu"))


def test_the_card_travels_in_the_metadata(model):
    table = lf.predict(model, PIXELS, device="cpu").to_arrow()
    assert json.loads(table.schema.metadata[b"leanformer"])["backbone"] == "vit"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"top": 0}, "nothing else is asked for"),
        ({"top": -1}, "top must be 0 or more"),
        ({"embed": "int8"}, "embed must be float16 or float32"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"crop": 2.0}, "crop must be above 0"),
        ({"dtype": "int4"}, "unknown dtype"),
        ({"device": "warp"}, "there is no device 'warp'"),
        ({"engine": "spark"}, "unknown engine 'spark'; known: local, ray"),
        ({"workers": -1}, "workers must be 0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(model, options, says):
    with pytest.raises(ValueError, match=says) as refusal:
        lf.predict(model, PIXELS, **options)
    assert "\n" not in str(refusal.value)
