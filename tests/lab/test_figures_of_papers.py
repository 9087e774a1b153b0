"""Pictures of the papers: what is removed, how alike tokens are, where deep tokens look."""

import pytest
import torch
from helpers import randomise
from PIL import Image

import leanformer as lf
from lab.__main__ import main
from lab.studies.training_free import training_free
from leanformer.visualise.redundancy import class_scores, correlations, keep_tokens, similar_shares

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}


@pytest.fixture(scope="module")
def vit():
    return randomise(lf.create("vit", **TINY)).eval()


def test_a_vit_with_all_its_tokens_in_another_order_answers_the_same(vit):
    images = torch.randn(2, 3, 32, 32)
    kept = torch.stack([torch.randperm(16), torch.randperm(16)])
    with torch.no_grad():
        torch.testing.assert_close(keep_tokens(vit, images, kept), vit(images), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(keep_tokens(vit, images, kept[:, :4]), vit(images), atol=1e-3)
    assert vit(images).shape == (2, 5)  # nothing of the hook is left


def test_scores_are_the_attention_by_which_evit_ranks(vit):
    images, seen = torch.randn(2, 3, 32, 32), []
    lean = lf.apply(vit, lf.EViT(keep_rate=0.5, at=(1,))).eval()
    lean.blocks[1].mix.decision.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        lean(images)
    torch.testing.assert_close(class_scores(vit, images), seen[0])


def test_tokens_are_similar_by_their_correlation(vit):
    tokens = torch.randn(1, 6, 32)
    expected = torch.corrcoef(tokens[0])
    torch.testing.assert_close(correlations(tokens)[0], expected, atol=1e-5, rtol=1e-5)
    shares = similar_shares(vit, torch.zeros(1, 3, 32, 32))
    assert len(shares[4]) == 4
    assert all(few >= many for few, many in zip(shares[4], shares[16]))


@pytest.mark.parametrize("kind", ["removed-tokens", "token-similarity", "deep-attention"])
def test_a_figure_is_drawn_from_the_command_line_and_told_in_words(kind, vit, tmp_path, capsys):
    file = lf.save(vit, tmp_path / "vit.safetensors")
    Image.new("RGB", (40, 40), (200, 30, 60)).save(tmp_path / "red.png")
    output = tmp_path / "figure.png"
    assert main(["figure", kind, str(file), "--image", str(tmp_path / "red.png"), "--output", str(output)]) == 0
    assert output.stat().st_size > 2000
    assert "vit" in capsys.readouterr().out


def test_a_model_without_a_sequence_of_tokens_is_refused():
    pool = lf.create("poolformer_s12", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8), img_size=32)
    with pytest.raises(ValueError, match="sequences of tokens"):
        similar_shares(pool, torch.zeros(1, 3, 32, 32))


def test_tokens_are_removed_at_random_or_the_attentive_ones_first():
    torch.manual_seed(0)
    vit = randomise(lf.create("vit", **{**TINY, "depth": 8})).eval()
    made = {each.model: each for each in training_free(vit)}
    kept = {}
    for name in (
        "EViT 0.5 at 2,4,6, no fusion",
        "removed at random at 2,4,6, 0.5 kept",
        "attentive removed at 2,4,6, 0.5 kept",
    ):
        model = made[name].make(vit).eval()
        chosen: list[torch.Tensor] = []
        model.blocks[2].mix.decision.register_forward_hook(lambda m, i, output, to=chosen: to.append(output))
        with torch.no_grad():
            model(torch.ones(1, 3, 32, 32))
        kept[name] = set(chosen[0][0].tolist())
    inattentive_out, random, attentive_out = kept.values()
    assert inattentive_out.isdisjoint(attentive_out)
    assert len(random) == len(inattentive_out) == 8
    assert random not in (inattentive_out, attentive_out)
