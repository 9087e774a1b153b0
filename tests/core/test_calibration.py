"""calibrate and recalibrate: whose tokens a slot is fitted to, and what is refused."""

import dataclasses
from typing import Any

import pytest
import torch
from families import backbone, images
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import METHODS, Branch, Method, select


class Noted(Branch):
    """A branch that adds a little to the old one, and notes whether it was fitted to the teacher's own tokens."""

    own_tokens: bool | None = None

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        return super().forward(x, **mask) + 0.1

    def fit(self, x: Tensor, teacher_x: Tensor, teacher_y: Tensor, teacher: nn.Module) -> None:
        self.own_tokens = not torch.equal(x, teacher_x)
        torch.testing.assert_close(teacher_y, teacher(teacher_x))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes(Method, name="notes"):
    """Noted branches for all FFNs."""

    def swaps(self, model: nn.Module) -> dict[str, Any]:
        return {path: lambda old: Noted(**old.parts()) for path in select(model, "ffn")}


METHODS.pop("notes")


@pytest.mark.parametrize(("keep_rate", "tokens"), [(0.6, 12), (0.9, 17)])  # 15 of 16 patches and the fused one are 16
@pytest.mark.parametrize("teacher_reduces", [True, False])
def test_a_slot_is_fitted_to_the_teachers_tokens_only_where_they_are_the_same_ones(keep_rate, tokens, teacher_reduces):
    plain, evit = backbone("vit"), lf.parse_method(f"evit:keep_rate={keep_rate},at=(2,)")
    reduced = lf.apply(plain, evit)
    assert reduced.blocks[2].mix(torch.randn(1, 17, 32)).shape[1] == tokens
    student = lf.apply(reduced, Notes())
    fitted = lf.calibrate(student, reduced if teacher_reduces else plain, images(plain, 4))
    assert [block.ffn.own_tokens for block in fitted.blocks] == [False, True, False, False]  # the first sees no change


def test_slimmed_tokens_that_lie_as_the_teachers_do_are_the_same_ones():
    teacher = lf.apply(backbone("vit"), lf.parse_method("sit:at=(2,)"))
    student = lf.apply(teacher, Notes())
    for other, own in ((teacher, [False, True, True, True]), (backbone("vit"), [False, True, False, False])):
        fitted = lf.calibrate(student, other, images(teacher, 4))
        assert [block.ffn.own_tokens for block in fitted.blocks] == own


@pytest.mark.parametrize("none", [[], torch.zeros(0, 3, 32, 32)], ids=["no batch", "an empty one"])
def test_calibration_without_images_is_refused(none):
    model = lf.apply(backbone("vit"), lf.parse_method("repa:refine_steps=0"))
    with pytest.raises(ValueError, match="no images to calibrate by"):
        lf.calibrate(model, backbone("vit"), none)
    with pytest.raises(ValueError, match="no images to calibrate by"):
        lf.recalibrate(model, none if isinstance(none, Tensor) else iter(none))


def test_slots_that_cannot_be_fitted_are_refused():
    model = lf.apply(backbone("vit"), lf.parse_method("repa:refine_steps=0,blocks=(1,)"))
    for slot in ("blocks.99.ffn", "blocks.0.ffn"):
        with pytest.raises(ValueError, match=f"{slot} is no slot that can be fitted; this model has: blocks.1.ffn"):
            lf.calibrate(model, backbone("vit"), images(model), slots=[slot])
