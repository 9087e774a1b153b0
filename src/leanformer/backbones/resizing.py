"""resize: the same model for another image size, its position embeddings resampled."""

from typing import Any

from torch import nn

from ..core import card_of, classes_of, input_of, plain_of, pooling_of
from .build import from_card
from .weights import load_weights


def resize(model: nn.Module, img_size: int | tuple[int, int]) -> nn.Module:
    """A copy of `model` for images of another size, e.g. to fine-tune at a higher resolution.

    Position embeddings are resampled to the new plane of patches; every other weight is copied. Methods stay where
    they are: a model that drops tokens keeps its rates, and `lf.measure.keep_rate_for` finds those that cost no more.
    An optimised model is fast for one size: its plain form is resized, to be optimised again.

    Raises:
        ValueError: Some weights are for one number of patches, as an MLP-Mixer's are and those of some methods.

    >>> import leanformer as lf
    >>> resize(lf.create("deit_tiny_patch16_224", depth=1), 256).pos_embed.shape
    torch.Size([1, 257, 192])
    """
    classes, model = classes_of(model), plain_of(model)
    card, weight = card_of(model), next(model.parameters())
    if not card.backbone:
        raise ValueError(f"this {type(model).__name__} cannot be rebuilt from a name; make it with lf.create")
    size = img_size if isinstance(img_size, int) else list(img_size)
    head = {"num_classes": model.num_classes} if hasattr(model, "num_classes") else {}
    arguments = {**card.arguments, **head, "img_size": size}
    kept = {"classes": classes, "input": _view(model), "global_pool": pooling_of(model)}
    new = from_card(card.replace(arguments=arguments, **kept))
    new = new.to(device=weight.device, dtype=weight.dtype)
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    try:
        load_weights(new, dict(model.state_dict()), resample_positions=True, grid=grid)
    except ValueError as error:
        told = str(error).partition("; ")[2] or error
        raise ValueError(
            f"this {type(model).__name__} cannot be resized to {img_size}; weights that count patches, as an "
            f"MLP-Mixer's do and those of some methods, fit no other number of them; {told}"
        ) from error
    return new.train(model.training)


def _view(model: nn.Module) -> dict[str, Any]:
    """Normalisation and crop of a model, which stay as they are at another size."""
    return {name: value for name, value in input_of(model).items() if name != "input_size"}
