"""python -m lab figure: pictures of the papers that explain why tokens can go, drawn for any ViT.

removed-tokens     EViT's Figure 1: what a ViT answers when input tokens are taken away
token-similarity   SiT's Figure 1a: how many tokens are nearly like many others, by depth
deep-attention     SiT's Figure 1b: where two tokens of a deep block look
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tyro

from leanformer.measure import console
from leanformer.visualise import Figure, deep_attention, removed_tokens, token_similarity

from .arguments import Set, open_model

Kind = Literal["removed-tokens", "token-similarity", "deep-attention"]
FIGURES: dict[str, Callable[..., Figure]] = {
    "removed-tokens": removed_tokens, "token-similarity": token_similarity, "deep-attention": deep_attention,
}  # fmt: skip


def figure(
    kind: Annotated[Kind, tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE")],
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    image: tuple[Path, ...],
    checkpoint: Path | None = None,
    arguments: Set = (),
    output: Path | None = None,
) -> None:
    """Draw a picture of the papers for a trained ViT.

    Example: python -m lab figure token-similarity vit_tiny_patch16_224 --checkpoint vit_tiny.safetensors --image a.jpg

    Args:
        kind: removed-tokens (EViT's Figure 1), token-similarity (SiT's Figure 1a) or deep-attention (SiT's Figure 1b).
        model: A model's name or a leanformer checkpoint.
        image: One or more image files.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        output: The file to write, .png or .svg; by default the figure's name as PNG.
    """
    drawn = FIGURES[kind](open_model(model, checkpoint, arguments).eval(), list(image))
    written = drawn.save(output or Path(f"{kind}.png"))
    console().print(drawn.summary, highlight=False, markup=False)
    console().print(f"wrote {written}")
