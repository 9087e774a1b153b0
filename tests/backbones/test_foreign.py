"""Models of transformers and torchvision: adopted, they give the same answers, and what cannot be is refused."""

import copy
import warnings
from typing import Any

import pytest
import torch
from helpers import randomise
from torch import Tensor, nn
from torchvision.models import swin_transformer, vision_transformer

import leanformer as lf
from leanformer.core import classes_of, input_of

VIT: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
                       "patch_size": 8, "num_labels": 5, "intermediate_size": 24}  # fmt: skip
DINO = {key: value for key, value in VIT.items() if key != "intermediate_size"} | {"layerscale_value": 0.7}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViTForImageClassification": ("ViTConfig", VIT),
    "ViTModel": ("ViTConfig", {**VIT, "hidden_act": "relu", "qkv_bias": False}),
    "DeiTForImageClassification": ("DeiTConfig", VIT),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", VIT),
    "Dinov2ForImageClassification": ("Dinov2Config", DINO),
    "Dinov2ForImageClassification, swiglu": ("Dinov2Config", {**DINO, "use_swiglu_ffn": True}),
    "Dinov2Model": ("Dinov2Config", DINO),
    "Dinov2WithRegistersForImageClassification": ("Dinov2WithRegistersConfig", DINO),
    "SwinForImageClassification": ("SwinConfig", {**SWIN, "num_labels": 5}),
    "SwinModel": ("SwinConfig", {**SWIN, "image_size": 64, "qkv_bias": False}),
}
TORCHVISION = {
    "vit": lambda: vision_transformer.VisionTransformer(32, 8, 2, 2, 16, 24, num_classes=5),
    "swin": lambda: swin_transformer.SwinTransformer([4, 4], 12, [2, 2], [2, 4], [4, 4], num_classes=5),
}


def of_transformers(case: str, **more: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit, on import
        transformers = pytest.importorskip("transformers", reason="the extra 'hub' is not installed")
    config, settings = THEIRS[case]
    made = getattr(transformers, case.split(",")[0])(getattr(transformers, config)(**{**settings, **more}))
    return randomise(made).eval()


@torch.no_grad()
def answer(model: nn.Module, images: Tensor) -> Tensor:
    """The logits, or the features of a model without a classifier, of whichever library."""
    out: Any = model(images)
    if isinstance(out, Tensor):
        return out
    if hasattr(out, "logits"):
        return out.logits
    return out.last_hidden_state.mean(1) if "Swin" in type(model).__name__ else out.last_hidden_state[:, 0]


def assert_same(theirs: nn.Module, ours: nn.Module, size: tuple[int, int] | None = None) -> None:
    _, *usual = input_of(ours)["input_size"]
    images = torch.randn(3, 3, *(size or usual), generator=torch.Generator().manual_seed(1))
    expected = answer(theirs, images)
    assert expected.std() > 0.05, "an answer that says nothing proves nothing"
    torch.testing.assert_close(answer(ours, images), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", THEIRS)
def test_a_model_of_transformers_answers_the_same_once_adopted_and_once_loaded_again(case: str, tmp_path) -> None:
    theirs = of_transformers(case)
    before = copy.deepcopy(theirs.state_dict())
    ours = lf.adopt(theirs)
    assert_same(theirs, ours)
    assert len(lf.blocks_of(ours)) == (4 if "Swin" in case else 2)
    assert all(torch.equal(value, before[key]) for key, value in theirs.state_dict().items())
    lf.save(ours, tmp_path / "m.safetensors")
    assert_same(theirs, lf.load(tmp_path / "m.safetensors"))


@pytest.mark.parametrize("kind", TORCHVISION)
def test_a_model_of_torchvision_answers_the_same_once_adopted(kind: str) -> None:
    theirs = randomise(TORCHVISION[kind]()).eval()
    ours = lf.adopt(theirs, arguments={"img_size": 32} if kind == "swin" else None)
    assert_same(theirs, ours)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("case", ["Dinov2ForImageClassification", "Dinov2WithRegistersForImageClassification"])
def test_a_dinov2_answers_the_same_at_other_sizes(case: str) -> None:
    theirs = of_transformers(case)
    assert_same(theirs, lf.adopt(theirs), (48, 24))


def test_methods_go_onto_an_adopted_model() -> None:
    lean = lf.apply(lf.adopt(of_transformers("DeiTForImageClassification")), lf.ToMe(keep_rate=0.5, at=(1,)))
    assert lean(torch.randn(2, 3, 32, 32)).shape == (2, 5)
    lean = lf.apply(lf.adopt(of_transformers("Dinov2ForImageClassification")), lf.EViT(keep_rate=0.5, at=(1,)))
    assert lf.with_head(lean, 3)(torch.randn(2, 3, 32, 32)).shape == (2, 3)


def test_names_of_classes_and_normalisation_come_along() -> None:
    theirs = of_transformers("ViTForImageClassification", id2label=dict(enumerate(["ant", "bee", "cat", "dog", "elk"])))
    ours = lf.adopt(theirs)
    assert classes_of(ours) == ("ant", "bee", "cat", "dog", "elk")
    assert input_of(ours)["mean"] == (0.5, 0.5, 0.5)
    assert classes_of(lf.adopt(of_transformers("ViTForImageClassification"))) is None, "LABEL_0 is no name"


def test_precision_and_mode_stay() -> None:
    theirs = of_transformers("ViTForImageClassification").to(torch.bfloat16).train()
    ours = lf.adopt(theirs)
    assert next(ours.parameters()).dtype == torch.bfloat16
    assert ours.training
    assert theirs.training


def test_what_cannot_be_adopted_is_said_in_one_line() -> None:
    with pytest.raises(ValueError, match="windows of 4 do not fill exactly"):
        lf.adopt(of_transformers("SwinModel", image_size=40))
    with pytest.raises(ValueError, match="only square"):
        lf.adopt(of_transformers("SwinModel", image_size=[32, 64]))
    with pytest.raises(ValueError, match="absolute position"):
        lf.adopt(of_transformers("SwinModel", use_absolute_embeddings=True))
    with pytest.raises(ValueError, match="activation 'tanh'"):
        lf.adopt(of_transformers("ViTModel", hidden_act="tanh"))
    with pytest.raises(ValueError, match="give no name"):
        lf.adopt(TORCHVISION["vit"](), "vit")
    with pytest.raises(ValueError, match="do not give img_size"):
        lf.adopt(TORCHVISION["vit"](), arguments={"img_size": 64})
    second = swin_transformer.SwinTransformerBlockV2
    with pytest.raises(ValueError, match="SwinTransformerBlockV2 is not understood"):
        lf.adopt(
            swin_transformer.SwinTransformer([4, 4], 12, [2], [2], [4, 4], block=second), arguments={"img_size": 32}
        )


def test_a_model_that_computes_something_else_is_refused() -> None:
    theirs = of_transformers("ViTForImageClassification")
    theirs.vit.layernorm.forward = lambda x: 2 * x
    with pytest.raises(ValueError, match="answers differently"):
        lf.adopt(theirs)
