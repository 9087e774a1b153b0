"""The verbs list, describe, apply and fuse, and how errors reach a user."""

import pytest
import torch
from helpers import randomise

import leanformer as lf
from leanformer.cli import VERBS, main
from leanformer.cli.parser import EXAMPLES

TINY = ["vit", "--set", "img_size=32", "--set", "patch_size=8", "--set", "embed_dim=32", "--set", "depth=4"]
TINY += ["--set", "num_heads=2", "--set", "num_classes=5"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_list_shows_methods_with_their_options_and_models_by_pattern(capsys):
    code, out, _ = run(capsys, "list", "deit_small*")
    assert code == 0
    assert "deit_small_patch16_224" in out
    assert "deit_base" not in out
    assert all(name in out for name in lf.METHODS)


def test_describe_prints_blocks_slots_and_totals(capsys):
    code, out, _ = run(capsys, "describe", "deit_small_patch16_224")
    assert code == 0
    assert "blocks.0-11" in out
    assert "22,050,664" in out
    assert "4.599 G" in out


def test_apply_then_fuse_writes_checkpoints_that_load_and_agree(capsys, tmp_path):
    lean, fast = str(tmp_path / "lean.safetensors"), str(tmp_path / "fast.safetensors")
    assert run(capsys, "apply", *TINY, "--apply", "repa:idle_ratio=0.5", "--output", lean)[0] == 0
    lf.save(randomise(lf.load(lean)), lean)
    assert run(capsys, "fuse", lean, "--output", fast)[0] == 0
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(lf.load(fast)(images), lf.load(lean)(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["describe", "deit_smal_patch16_224"], "did you mean deit_small_patch16_224"),
        (["describe", *TINY, "--apply", "nothing"], "unknown method 'nothing'; known methods:"),
        (["describe", *TINY, "--apply", "evit:keeprate=0.7"], "evit has no option 'keeprate'; its options: keep_rate"),
        (["describe", *TINY, "--apply", "evit:keep_rate=1.5"], "keep_rate"),
        (["describe", *TINY, "--apply", "evit", "--apply", "evit"], "both claim the slot"),
        (["describe", "missing.safetensors"], "missing.safetensors does not exist"),
        (["describe", "vit", "--set", "no_such=1"], "no_such"),
        (["fuse", "missing.safetensors", "--output", "x.safetensors"], "does not exist"),
        (["apply", *TINY, "--output", "no/such/folder/x.safetensors"], "cannot write"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line_and_exit_code_2(capsys, arguments, said):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_has_an_example(capsys, verb):
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr().out.replace("usage: ", "", 1).split("\n", 1)[1]
    assert f"leanformer {verb}" in said
    assert not any(f"{{{part}}}" in said for part in EXAMPLES)
    assert "--apply {" not in said


@pytest.mark.parametrize("part", EXAMPLES)
def test_the_methods_in_help_texts_exist_and_make_cheaper_what_they_stand_for(part):
    assert lf.parse_method(EXAMPLES[part]).acts_on == part
