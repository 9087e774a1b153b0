"""apply, fuse, fold, with_options and share: new models, clear refusals, nothing changed behind one's back."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from families import backbone, images
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import METHODS, Branch, Method, card_of, fold, share


class Shift(nn.Module):
    """Adds a learnt number; folds to nothing but another buffer."""

    def __init__(self, dim: int, start: float = 0.0):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(dim) + start)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class NeedsGrid(Shift):
    needs_grid = True


class LeavesGrid(Shift):
    leaves_grid = True

    def __init__(self, dim: int):
        super().__init__(dim)
        self.inner = NeedsGrid(dim)  # inside, before the grid is left


class Wrapped(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.inner = NeedsGrid(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Put(Method, name="put"):
    """Puts a module before the chosen blocks."""

    paths: tuple[str, ...] = ("blocks.0.pre",)
    kind: type[nn.Module] = Shift

    def swaps(self, model: nn.Module) -> dict[str, Any]:
        return {path: partial(self._build, dim=32) for path in self.paths}

    def _build(self, old: nn.Module, dim: int) -> nn.Module:
        return self.kind(dim)  # type: ignore[call-arg]


METHODS.pop("put")


def test_apply_needs_a_leanformer_model_and_methods() -> None:
    with pytest.raises(ValueError, match=r"Linear is not a leanformer model; pass it through lf\.adopt first"):
        lf.apply(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="'evit' is not a method"):
        lf.apply(backbone("vit"), "evit")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["blocks.0.nonsense", "blocks.99.mix", "norm", "blocks.0.mix.fn"])
def test_claims_on_what_is_no_slot_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"put claims {path}, which is no slot of this VisionTransformer"):
        lf.apply(backbone("vit"), Put(paths=(path,)))


def test_two_claims_on_one_slot_name_both_methods_and_the_slot() -> None:
    once = lf.apply(backbone("vit"), Put())
    for claim in (lambda: lf.apply(once, Put()), lambda: lf.apply(backbone("vit"), Put(), Put())):
        with pytest.raises(ValueError, match=r"put and put both claim the slot blocks\.0\.pre; choose other blocks"):
            claim()


def test_new_weights_depend_on_seed_and_place_alone() -> None:
    paths = ("blocks.0.pre", "blocks.2.pre")
    both, second = lf.apply(backbone("vit"), Put(paths=paths)), lf.apply(backbone("vit"), Put(paths=paths[1:]))
    assert torch.equal(both.get_parameter("blocks.2.pre.shift"), second.get_parameter("blocks.2.pre.shift"))
    assert not torch.equal(both.get_parameter("blocks.2.pre.shift"), both.get_parameter("blocks.0.pre.shift"))
    other = lf.apply(backbone("vit"), Put(paths=paths), seed=1)
    assert not torch.equal(other.get_parameter("blocks.0.pre.shift"), both.get_parameter("blocks.0.pre.shift"))


def test_new_modules_take_dtype_and_mode_of_the_model() -> None:
    model = lf.apply(lf.adopt(backbone("vit")).double().train(), Put())
    assert model.get_parameter("blocks.0.pre.shift").dtype == torch.float64
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("kind", [NeedsGrid, Wrapped])
def test_what_needs_the_grid_is_refused_behind_what_leaves_it(kind: type[nn.Module]) -> None:
    leaves = Put(paths=("blocks.1.pre",), kind=LeavesGrid)
    before, after = Put(paths=("blocks.0.pre",), kind=kind), Put(paths=("blocks.2.pre",), kind=kind)
    assert lf.apply(backbone("vit"), leaves, before) is not None
    for order in ((leaves, after), (after, leaves)):
        with pytest.raises(ValueError, match=r"blocks\.2\.pre.* needs the grid of patches, which blocks\.1\.pre"):
            lf.apply(backbone("vit"), *order)


class HandsOn(Branch):
    hands_on = True

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        y = super().forward(x[..., :32], **mask)
        return torch.cat([y, y[..., :1]], dim=-1)


class TakesUp(HandsOn):
    hands_on = False

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        return Branch.forward(self, x[..., :32], **mask)


def test_a_module_between_blocks_is_refused_where_channels_are_handed_on() -> None:
    class Between(Put, name="between"):
        def _build(self, old: nn.Module, dim: int) -> nn.Module:
            assert isinstance(old, Branch)
            return self.kind(**old.parts())

    METHODS.pop("between")
    hands, takes = Between(paths=("blocks.1.mix",), kind=HandsOn), Between(paths=("blocks.2.mix",), kind=TakesUp)
    for path in ("blocks.1.pre", "blocks.3.pre"):
        model = lf.apply(backbone("vit"), hands, takes, Put(paths=(path,)))
        assert model(images(model)).shape == (2, 5)
    for order in ((hands, takes, Put(paths=("blocks.2.pre",))), (Put(paths=("blocks.2.pre",)), takes, hands)):
        with pytest.raises(ValueError, match=r"blocks\.2\.pre \(Shift\) .* but blocks\.1\.mix \(HandsOn\) hands"):
            lf.apply(backbone("vit"), *order)


def test_a_fused_model_takes_no_more_methods_and_is_not_fused_again() -> None:
    fused = lf.fuse(backbone("vit"))
    with pytest.raises(ValueError, match="this model is fused; apply methods to the model before"):
        lf.apply(fused, Put())
    with pytest.raises(ValueError, match="fused already"):
        lf.fuse(fused)


class WrongFold(Branch):
    def fused(self) -> nn.Module:
        return Branch(nn.Identity(), nn.Identity())


def test_fuse_proves_itself() -> None:
    model: Any = lf.adopt(backbone("vit"))
    model.blocks[0].mix = WrongFold(**model.blocks[0].mix.parts())
    with pytest.raises(RuntimeError, match="fusing changed the outputs by"):
        lf.fuse(model)
    assert card_of(fold(model)).fused
    assert card_of(lf.fuse(model, verify=False)).fused


class FoldsInEvaluation(Branch):
    def fused(self) -> nn.Module:
        assert not self.training
        return Branch(**self.parts())


def test_modules_fold_in_evaluation_mode_and_the_model_stays_in_training() -> None:
    model: Any = lf.adopt(backbone("vit")).train()
    model.blocks[0].mix = FoldsInEvaluation(**model.blocks[0].mix.parts())
    folded: Any = fold(model)
    assert type(folded.blocks[0].mix) is Branch
    assert not any(module.training for module in folded.modules())
    assert all(module.training for module in model.modules())


def test_a_model_that_answers_nan_is_not_fused() -> None:
    model: Any = lf.adopt(backbone("vit"))
    model.head.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="outputs are not finite"):
        lf.fuse(model)


def test_share_copies_modules_around_the_same_tensors() -> None:
    model = backbone("timm_poolformer")
    twin = share(model)
    assert all(a is b for a, b in zip(model.parameters(), twin.parameters()))
    assert all(a is b for a, b in zip(model.buffers(), twin.buffers()))
    assert not {id(m) for m in model.modules()} & {id(m) for m in twin.modules()}


def test_unknown_run_time_options_are_refused() -> None:
    with pytest.raises(ValueError, match="'keep_rate' is no run-time option of this model; it has: none"):
        lf.with_options(backbone("vit"), keep_rate=0.5)
    lean = lf.apply(backbone("vit"), lf.parse_method("evit"))
    with pytest.raises(ValueError, match=r"'magic' is no run-time option of this model; it has: .*keep_rate"):
        lf.with_options(lean, magic=1)
    with pytest.raises(ValueError, match="keep_rate"):
        lf.with_options(lean, keep_rate=1.5)


@pytest.mark.parametrize("other", ["evit:keep_rate=0.9,at=(2,)", "tome:keep_rate=0.9,at=(2,)"])
def test_every_method_that_has_a_run_time_option_gets_it(other: str) -> None:
    lean = lf.apply(backbone("vit"), lf.parse_method("evit:keep_rate=0.8,at=(1,)"), lf.parse_method(other))
    faster: Any = lf.with_options(lean, keep_rate=0.5)
    assert [method.fields()["keep_rate"] for method in card_of(faster).methods] == [0.5, 0.5]
    assert [faster.blocks[i].mix.keep_rate for i in (1, 2)] == [0.5, 0.5]


def test_with_options_leaves_the_model_it_was_given() -> None:
    lean = lf.apply(backbone("vit"), lf.parse_method("evit:keep_rate=0.7"))
    x = images(lean)
    before = lean(x)
    faster = lf.with_options(lean, keep_rate=0.3)
    assert not torch.equal(faster(x), before)
    assert torch.equal(lean(x), before)
    assert card_of(lean).methods[0].fields()["keep_rate"] == 0.7
    assert card_of(faster).methods[0].fields()["keep_rate"] == 0.3
