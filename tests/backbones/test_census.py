"""Every timm model name of the adopted families: adopted, or refused with which reason."""

import re
from pathlib import Path

import pytest
import timm
import torch
from helpers import randomise

import leanformer as lf
from leanformer.backbones.census import FAMILIES, census, names_of
from leanformer.cli import main
from leanformer.cli.backbones import to_markdown

PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"
REFUSED = {
    "vit_base_patch16_18x2_224": "ParallelThingsBlock",
    "vit_small_patch16_18x2_224": "ParallelThingsBlock",
    "vit_base_patch16_rpn_224": "ResPostBlock",
    "vit_base_patch16_xp_224": "ParallelScalingBlock",
    "vit_large_patch14_xp_224": "ParallelScalingBlock",
    "vit_huge_patch14_xp_224": "ParallelScalingBlock",
    "vit_pwee_patch16_reg1_gap_256": "ParallelScalingBlock",
    "vit_dpwee_patch16_reg1_gap_256": "DiffParallelScalingBlock",
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_model_is_adopted_or_refused_by_its_block(family: str) -> None:
    entries = list(census(family))
    assert [entry.name for entry in entries] == names_of(family)
    for entry in entries:
        reason = f"its block {REFUSED[entry.name]} is not understood" if entry.name in REFUSED else ""
        assert entry.refused == reason, entry
        assert bool(entry.blocks) == (not reason), entry
    if f"timm {timm.__version__}:" in PAGE.read_text():
        rows = [line for line in to_markdown(entries).splitlines() if line.startswith("| ")]
        assert set(rows) <= set(PAGE.read_text().splitlines()), "docs/backbones.md is stale: make it again"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vision_transformer", "deit"])
@torch.no_grad()
def test_every_adopted_vision_transformer_is_bit_equal_with_one_block_of_its_kind(family: str) -> None:
    """Names differ in their norms, MLPs, scales, tokens and poolings; one block at a small size shows them all."""
    seen = set()
    for name in names_of(family):
        if name in REFUSED:
            continue
        kind = re.sub(r"_(\d{2,3}|quickgelu|clip)$", "", name)
        if kind in seen or re.search(r"giant|gigantic|huge|so\d|large|mci|7b", name):
            continue  # the same block, only wider
        seen.add(kind)
        patch = int(re.search(r"patch(\d+)", name).group(1)) if "patch" in name else 16  # type: ignore[union-attr]
        theirs = randomise(timm.create_model(name, depth=1, img_size=2 * patch, num_classes=3), scale=0.02).eval()
        x = torch.randn(2, 3, 2 * patch, 2 * patch)
        assert torch.equal(lf.adopt(theirs, name)(x), theirs(x)), name
    assert len(seen) > 5


def test_a_family_is_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert main(["backbones", "mlp_mixer", "--markdown", str(page)]) == 0
    out = capsys.readouterr().out
    assert "15 models adopted, 0 refused" in out.replace("\n", " ")
    assert "| mixer_b16_224 | MlpMixer | 12 AcrossTokens | 59.88 | adopted |" in page.read_text()


def test_an_unknown_family_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backbones", "resnet"]) == 2
    assert capsys.readouterr().err.startswith("leanformer: --family: unknown 'resnet'; known: vision_transformer")


def test_our_own_names_are_not_taken_for_timms() -> None:
    assert "lvvit_s" not in {name for family in FAMILIES for name in names_of(family)}
    assert "poolformer_s12" in names_of("metaformer")
