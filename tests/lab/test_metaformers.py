"""Every row of the study of MetaFormers can be made, fitted, distilled, compiled, trained in bf16 and fused."""

import math

import pytest
import torch

import leanformer as lf
from lab.studies.metaformers import NATIVE, metaformers, short
from leanformer.measure import count

SMALL = {"depths": (1, 1, 1, 1), "dims": (8, 16, 32, 32)}
STUDY = metaformers(**SMALL, head_dim=8)
ROWS = {student.name: student for student in STUDY.students}


@pytest.fixture(scope="module")
def teacher():
    return STUDY.teacher(4)


def step(student, teacher, compile):
    """One update as the study makes it."""
    images, labels = torch.randint(0, 256, (16, 3, 64, 64), dtype=torch.uint8), torch.arange(16) % 4
    model = student.make(teacher, 20)
    if student.calibrate:
        model = lf.calibrate(model, teacher, torch.randn(8, 3, 64, 64))
    recipe = short().replace(epochs=1, warmup_epochs=0, batch_size=16)
    return model, lf.train.fit(
        model, recipe=recipe, data=(images, labels), val=(images, labels), objective=student.objective, device="cpu",
        teacher=dict.fromkeys(student.teachers, teacher) or None, precision="bf16", compile=compile, quiet=True,
    )  # fmt: skip


def test_rows_have_names_of_their_own_and_maps_are_those_of_half_the_stride():
    assert len(ROWS) == len(STUDY.students)
    config = lf.create("poolformer_s12", **NATIVE).config
    assert [config.plane(stage)[0] for stage in range(4)] == [32, 16, 8, 4]
    # 128 pixels under the published stem: the same maps, and a stem that costs the same
    ours = count(lf.create("poolformer_s12", **NATIVE)).macs
    assert ours == count(lf.create("poolformer_s12", img_size=128)).macs


ONE_OF_EACH = (
    "RandFormer-S12, labels", "RIFormer-S12, imitation, teacher's weights", "RePa-PoolFormer-S12 0.5, distilled",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ONE_OF_EACH else pytest.mark.exhaustive) for name in ROWS]
)
def test_a_row_takes_a_step_in_bf16_and_fuses(name, teacher):
    model, result = step(ROWS[name], teacher, compile=False)
    assert result.updates == 1
    assert result.evaluation is not None
    assert result.ema_evaluation is not None
    assert math.isfinite(result.evaluation.loss)
    lf.fuse(model)


LONG = ("CAFormer-S18, labels", "RIFormer-S12, imitation, teacher's weights", "RePa-PoolFormer-S12 0.5, distilled")
"""Rows that take minutes to compile."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["RandFormer-S12, labels", *LONG])
def test_a_row_takes_a_compiled_step(name, teacher):
    torch.compiler.reset()
    _, result = step(ROWS[name], teacher, compile=True)
    assert math.isfinite(result.evaluation.loss)
