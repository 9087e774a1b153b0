"""The study of SiT: every row can be made, rows that are compared cost the same, teachers of every kind are read."""

import pytest
import timm
import torch

import leanformer as lf
from lab.studies.sit import Costs, sit
from leanformer.core import Step, View, taps
from leanformer.layers.levels import levels_of
from leanformer.measure import count

TINY = {"img_size": 64, "patch_size": 16, "embed_dim": 32, "num_heads": 2, "depth": 8}
STUDY = sit(**TINY)
ROWS = {student.name: student for student in STUDY.students}


@pytest.fixture(scope="module")
def teacher():
    return STUDY.teacher(3)


def _can_be_made(name, teacher):
    student = ROWS[name]
    model = student.make(teacher, 4)
    assert model.num_classes == 3
    assert hasattr(model, "head_dist") == ("cnn" in student.others)


def test_rows_have_names_of_their_own_and_name_teachers_of_the_study():
    assert len(ROWS) == len(STUDY.students)
    tables = {name.partition("/")[0] for name in ROWS}
    assert tables == {*(f"table{n}" for n in range(4, 11)), "figure5a", "figure5b"}
    assert all(student.needs <= STUDY.others.keys() for student in STUDY.students)


@pytest.mark.parametrize(
    "name", ["table5/self, scratch", "table6/0.5 hard, a CNN's labels", "table7/conv, recalibration",
             "figure5b/random 3, recalibration"]
)  # fmt: skip
def test_a_row_makes_a_student_with_a_distillation_token_where_a_cnn_teaches(name, teacher):
    _can_be_made(name, teacher)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ROWS)
def test_every_row_makes_a_student(name, teacher):
    _can_be_made(name, teacher)


def test_table_5_is_of_sit_xs_on_lvvit_s_as_the_paper_has_it():
    study = sit(**TINY, **{f"lvvit_plus_small.{key}": value for key, value in {**TINY, "depth": 16}.items()})
    rows = [student for student in study.students if student.name.startswith("table5/")]
    assert {student.made_from for student in rows} == {"lvvit_plus_small"}
    assert [student.paper for student in rows if student.name.startswith("table5/self")] == [80.1, 80.5, 81.1]
    teacher = study.untrained("lvvit_plus_small", 3)
    assert teacher.num_classes == 3
    for student in rows[:2]:
        slimmed = student.make(teacher, 4)
        published = lf.SiT.preset("lvvit_plus_xsmall").places(slimmed)
        assert lf.card_of(slimmed).methods[0].places(slimmed) == published == (1, 2, 3)
    fresh, tuned = (student.make(teacher, 4).blocks[0].mix.fn.qkv.weight for student in rows[:2])
    assert torch.equal(tuned, teacher.blocks[0].mix.fn.qkv.weight)
    assert not torch.equal(fresh, tuned)


def test_what_table_4_compares_costs_the_same(teacher):
    whole = {name: count(ROWS[f"table4/{name}"].make(teacher, 4)).macs for name in
             ("width, labels", "depth, labels", "dropping, distilled", "slimming, labels")}  # fmt: skip
    spread = [macs for name, macs in whole.items() if name != "width, labels"]  # its stem is narrower as well
    assert max(spread) - min(spread) < 0.25 * count(teacher).macs
    costs = Costs(depth=14, patches=196, dim=320, hidden=960)
    for share in (0.75, 0.5):
        assert costs.slimmed(costs.places(share)) / costs.whole() == pytest.approx(share, abs=0.035)


def test_another_backbone_has_all_rows_but_those_of_a_distillation_token():
    names = {student.name for student in sit(backbone="deit_tiny_patch16_224").students}
    assert names == {name for name, student in ROWS.items() if "cnn" not in student.others}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("test_byobnet", {}), ("cait_xxs24_224", {"img_size": 64, "depth": 3, "embed_dim": 16, "num_heads": 2})],
)
def test_a_student_recalibrates_to_the_feature_levels_of_a_teacher_without_blocks(name, arguments, teacher):
    other = timm.create_model(name, num_classes=3, **arguments).eval()
    student = ROWS["table5/cait, fine-tuned with structure"].make(teacher, 4)
    objective = lf.card_of(student).methods[0].objective(student, other)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad(), taps(other, objective.teacher_taps()["teacher"]) as seen:
        view = View(other(images), dict(seen))
    with taps(student, objective.student_taps()) as seen:
        ours = View(student(images), dict(seen))
    terms = objective(Step(images, torch.tensor([0, 1]), ours, {"teacher": view}))
    assert set(terms) == {"cls", "token", "logits"}
    paths = [level.path for level in levels_of(other)]
    assert [path for path, _, _ in objective.teacher_at][-1] == paths[-1]
    sum(terms.values()).backward()


def test_a_teacher_that_shows_nothing_inside_is_refused():
    with pytest.raises(ValueError, match="neither leanformer blocks nor feature levels"):
        levels_of(torch.nn.Linear(2, 2))
