"""The study of EViT: rows of its tables at any scale, each with the paper's schedule in proportion."""

import pytest
import torch

import leanformer as lf
from lab.studies.evit import evit, larger
from leanformer.core import input_of
from leanformer.measure import count
from leanformer.papers.evit.tables import LARGER

TINY = {"img_size": 112, "patch_size": 16, "embed_dim": 24, "num_heads": 3, "depth": 12}
STUDY = evit(
    backbone="deit_tiny_patch16_224", lvvit="lvvit_t", **TINY, **{"lvvit_t.embed_dim": 16, "lvvit_t.num_heads": 2}
)
ROWS = {student.name: student for student in STUDY.students}


@pytest.fixture(scope="module")
def teacher():
    return STUDY.teacher(3)


def test_the_keep_rate_falls_over_a_third_of_the_run(teacher):
    student = ROWS["table2/0.5, labels"].make(teacher, 60)
    (method,) = lf.card_of(student).methods
    assert [method.advance(student, epoch)["keep_rate"] for epoch in (0, 2, 22)] == [1.0, 1.0, 0.5]


def test_the_papers_places_in_table_4_are_the_row_of_table_2(teacher):
    rows = (ROWS[f"{name}, labels"].make(teacher, 60) for name in ("table2/0.7", "table4/at 4-7-10", "table7/scratch"))
    assert len({repr(lf.card_of(row).methods) for row in rows}) == 1


def test_larger_images_at_a_lower_rate_cost_what_the_whole_model_costs(teacher):
    student = ROWS["table6a/0.5 at 304, labels"].make(teacher, 3)
    assert input_of(student)["input_size"] == (3, 144, 144)
    assert count(student).macs == pytest.approx(count(teacher).macs, rel=0.2)


def test_larger_images_that_the_paper_tells_apart_have_sizes_of_their_own():
    sizes = {(s.keep, s.size): larger(128, s) for s in LARGER[1:]}
    assert [sizes[0.5, size] for size in (256, 288, 304)] == [144, 160, 176]
    assert [sizes[0.6, size] for size in (256, 288)] == [144, 160]


def test_a_quarter_of_all_sizes_and_patches_leaves_the_papers_tokens():
    quarter = {"img_size": 56, "patch_size": 4, "embed_dim": 24, "num_heads": 3}
    labelled = {"lvvit_t.patch_size": 4, "lvvit_t.embed_dim": 24, "lvvit_t.num_heads": 3}
    study = evit(backbone="deit_tiny_patch16_224", lvvit="lvvit_t", **quarter, **labelled)
    teacher = study.teacher(3)
    rows = {student.name: student.make(teacher, 3) for student in study.students if "304" in student.name}
    assert len(rows) == 2
    for model in rows.values():
        assert input_of(model)["input_size"] == (3, 76, 76)
        assert model.patch_embed.grid_size == (19, 19)  # 304 pixels in patches of 16


def test_the_oracle_is_the_trained_model_and_the_others_start_anew(teacher):
    torch.manual_seed(1)  # other weights than the teacher's own start
    oracle, scratch = (ROWS[f"table7/{name}, labels"].make(teacher, 3) for name in ("oracle", "scratch"))
    weights = [model.blocks[0].mix.fn.qkv.weight for model in (oracle, scratch, teacher)]
    assert weights[0].equal(weights[2])
    assert not weights[1].equal(weights[2])


def test_every_row_may_start_from_the_trained_model_at_the_size_of_its_images_and_leaves_it_as_it_is(teacher):
    arguments = {**TINY, "lvvit_t.embed_dim": 16, "lvvit_t.num_heads": 2}
    study = evit(backbone="deit_tiny_patch16_224", lvvit="lvvit_t", oracle=True, **arguments)
    rows = {student.name: student for student in study.students}
    started = [name for name in rows if name.endswith(", labels from the trained DeiT")]
    assert {name.partition("/")[0] for name in started} == {"table2", "table4", "table6a"}
    assert {"table7/scratch, labels", "table3b/0.5 at 224, token labels"} < rows.keys()
    assert {rows[name].paper for name in started} == {None}  # the paper's rows start from random weights
    whole, larger = (rows[f"{name}, labels from the trained DeiT"].make(teacher, 3) for name in
                     ("table2/1.0", "table6a/0.5 at 304"))  # fmt: skip
    for model in (whole, larger):
        assert model.blocks[0].mix.fn.qkv.weight.equal(teacher.blocks[0].mix.fn.qkv.weight)
    assert input_of(larger)["input_size"] == (3, 144, 144)
    assert whole.blocks[0].mix.fn.qkv.weight is not teacher.blocks[0].mix.fn.qkv.weight  # trained apart from it


def test_lvvit_learns_token_labels_from_the_trained_deit(teacher):
    student = ROWS["table3b/0.5 at 224, token labels"]
    assert student.teachers == ("annotator",)
    assert student.objective.startswith("token_labels")
    assert lf.card_of(student.make(teacher, 3)).backbone == "lvvit_t"
    with pytest.raises(ValueError, match="no model 'vig'"):
        evit(**{"vig.depth": 3})


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ROWS)
def test_every_row_makes_a_student(name, teacher):
    assert ROWS[name].make(teacher, 3).num_classes == 3
