"""Checkpoints that version 0.1.0 wrote are loaded, and answer as they did there.

`data/NAME.safetensors` is what 0.1.0's `lf.save` wrote; `data/NAME.answers.safetensors` holds two images and the
logits that its model gave for them.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import leanformer as lf

DATA = Path(__file__).parent / "data"
METHODS = {
    "vit_repa_evit": (["evit", "repa"], False),
    "poolformer_riformer_fused": (["riformer"], True),
    "vit_sit": (["sit"], False),
}
"""Checkpoint → its methods, and whether it is fused."""


@pytest.mark.quick
@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_a_checkpoint_of_the_version_before_answers_the_same(name, tmp_path):
    answer = load_file(DATA / f"{name}.answers.safetensors")
    model = lf.load(DATA / f"{name}.safetensors")
    card = lf.card_of(model)
    assert ([method.name for method in card.methods], card.fused) == METHODS[name]
    for loaded in (model, lf.load(lf.save(model, tmp_path / "again.safetensors"))):
        torch.testing.assert_close(loaded(answer["images"].float()), answer["outputs"], rtol=1e-5, atol=1e-5)
