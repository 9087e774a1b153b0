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


def test_places_that_were_written_in_another_order_are_read_as_they_were_meant(tmp_path):
    vit = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2)
    path = lf.save(lf.apply(vit, lf.EViT(at=(1, 2))), tmp_path / "model.safetensors")
    content = path.read_bytes()
    assert content.count(rb"\"at\": [1, 2]") == 1
    path.write_bytes(content.replace(rb"\"at\": [1, 2]", rb"\"at\": [2, 1]"))
    assert lf.card_of(lf.load(path)).methods[0].at == (1, 2)
