"""Every row of the paper's studies is a setting that builds a student and an objective with the right terms."""

import pytest
import torch

import leanformer as lf
from lab.studies.riformer import SETTINGS
from leanformer.core import Step, View, taps

TINY = {"depths": (1, 1, 2, 1), "dims": (32, 32, 32, 32), "num_classes": 5, "img_size": 32}


STEPPED = (
    "table1/identity", "table2/hard-labels", "table3/soft", "table4/feature80-relation20-layers4",
    "table7/identity-features", "table9/18-caformer",
)  # fmt: skip


def test_every_row_of_the_tables_builds_its_student():
    for setting in SETTINGS.values():
        with torch.device("meta"):
            imitated = lf.create(setting.backbone, **TINY) if setting.imitation or setting.initialise else None
            student = setting.student(12, imitated, **TINY)
        assert bool(lf.card_of(student).methods) == (setting.method is not None)


@pytest.mark.parametrize("name", STEPPED)
def test_rows_of_every_kind_take_a_step_with_their_terms(name):
    setting = SETTINGS[name]
    imitated = lf.create(setting.backbone, **TINY) if setting.imitation else None
    student = setting.student(12, imitated, **TINY)
    logits = lf.create("mixer", img_size=32, embed_dim=16, num_blocks=1, num_classes=5) if setting.teacher else None
    teachers, images = setting.teachers(logits, imitated), torch.randn(2, 3, 32, 32)
    objective = lf.card_of(student).methods[0].objective(student, teachers.get("teacher"))
    objective.meet(teachers)
    views = {}
    for key, model in teachers.items():
        with torch.no_grad(), taps(model, objective.teacher_taps().get(key, ())) as seen:
            views[key] = View(model(images), dict(seen))
    with taps(student, objective.student_taps()) as seen:
        view = View(student(images), dict(seen))
    terms = objective(Step(images, torch.tensor([0, 1]), view, views))
    assert ("block" in terms) == setting.imitation
    assert ("relation" in terms) == (setting.imitation and setting.method.relation_epochs > 0)
    assert ("output" in terms) == (setting.imitation and not setting.method.identity)
    sum(terms.values()).backward()


def test_imitation_is_shortened_with_the_run():
    student = SETTINGS["table4/feature80-relation20-layers4"].student(12, lf.create("poolformer_s12", **TINY), **TINY)
    method = lf.card_of(student).methods[0]
    assert (method.feature_epochs, method.relation_epochs) == (8, 2)


def test_a_row_that_imitates_asks_for_its_teacher():
    with pytest.raises(ValueError, match="train that first"):
        SETTINGS["table7/affine-imitation"].student(12)
    with pytest.raises(ValueError, match="needs a teacher of logits"):
        SETTINGS["table7/affine-imitation"].teachers()


def test_the_last_guideline_takes_all_weights_but_the_affines():
    imitated = lf.create("poolformer_s12", **TINY)
    student = SETTINGS["table7/affine-imitation"].student(12, imitated)
    theirs = imitated.state_dict()
    assert all(torch.equal(v, theirs[k]) for k, v in student.state_dict().items() if ".mix.fn." not in k)


def test_rows_of_the_papers_tables_have_its_losses_and_ours_are_called_ours():
    for name, setting in SETTINGS.items():
        if setting.method is not None and setting.imitation:
            assert setting.method.relative == name.startswith("ours/"), name


def test_the_row_that_stands_in_tables_3_4_and_5_is_one_run():
    same = ("table3/soft", "table4/feature0-relation0-layers0", "table5/gfnet_h_b")
    assert len({repr(SETTINGS[name].method) for name in same}) == 1
