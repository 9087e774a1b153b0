"""The verb sweep: every setting in one table and one file, and on from where it was interrupted."""

import io
import json

import numpy as np
import pytest
from helpers import randomise
from PIL import Image

import leanformer as lf
from leanformer.cli import main
from leanformer.cli.sweep import settings
from leanformer.data.packs import write_pack

TINY = ["vit", "--set", "img_size=32", "--set", "patch_size=8", "--set", "embed_dim=32", "--set", "depth=4"]
TINY += ["--set", "num_heads=2", "--set", "num_classes=7"]
LEAN = [*TINY, "--apply", "evit"]


@pytest.fixture
def pack(tmp_path) -> str:
    return pack_of(tmp_path)


def pack_of(folder, seed: int = 0) -> str:
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 32, 32, 3), np.uint8)
    files = []
    for image in pixels:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        files.append(file.getvalue())
    return f"pack:{write_pack(folder / 'set.npz', files, range(6))}"


def test_every_combination_has_a_row(capsys, pack, tmp_path):
    output = tmp_path / "sweep.json"
    command = ["sweep", *LEAN, "--data", pack, "--vary", "keep_rate=1.0,0.5", "--vary", "fuse_tokens=false,true"]
    assert main([*command, "--output", str(output)]) == 0
    assert "keep_rate" in capsys.readouterr().out
    result = json.loads(output.read_text())
    assert result["images"] == 6
    assert [(row["keep_rate"], row["fuse_tokens"]) for row in result["rows"]] == [
        (1.0, False), (1.0, True), (0.5, False), (0.5, True)
    ]  # fmt: skip
    costs = [row["macs"] for row in result["rows"]]
    assert costs[0] == costs[1] > costs[3] > costs[2]


def test_an_interrupted_sweep_goes_on_and_another_run_is_not_overwritten(capsys, pack, tmp_path):
    output = tmp_path / "sweep.json"
    command = ["sweep", *LEAN, "--data", pack, "--output", str(output), "--vary"]
    assert main([*command, "keep_rate=(0.9,0.8,0.7)"]) == 0
    first = json.loads(output.read_text())["rows"][0] | {"top1": -1.0}
    output.write_text(json.dumps(json.loads(output.read_text()) | {"rows": [first]}))
    assert main([*command, "keep_rate=(0.9,0.8,0.7),0.5"]) == 0
    assert [row["top1"] < 0 for row in json.loads(output.read_text())["rows"]] == [True, False]
    assert main([*command, "keep_rate=0.9", "--crop", "0.9"]) == 2
    assert "another run" in capsys.readouterr().err


def test_a_setting_with_one_more_option_is_another_setting(capsys, pack, tmp_path):
    output = tmp_path / "sweep.json"
    command = ["sweep", *LEAN, "--data", pack, "--output", str(output), "--vary", "keep_rate=0.5"]
    assert main([*command, "--vary", "fuse_tokens=false"]) == 0
    assert main(command) == 0  # fuses its tokens, as the method does by default
    rows = json.loads(output.read_text())["rows"]
    assert [row.get("fuse_tokens") for row in rows] == [None, False]
    assert rows[0]["macs"] > rows[1]["macs"]
    assert main([*command, "--vary", "fuse_tokens=true"]) == 0
    assert "fuse_tokens" in capsys.readouterr().out
    assert len(json.loads(output.read_text())["rows"]) == 3


def test_the_points_of_the_figure_are_named_by_their_settings(capsys, pack, tmp_path):
    figure = tmp_path / "sweep.svg"
    command = ["sweep", *LEAN, "--data", pack, "--vary", "keep_rate=0.5", "--vary", "fuse_tokens=true"]
    assert main([*command, "--figure", str(figure)]) == 0
    assert "keep_rate=0.5, fuse_tokens=True" in figure.read_text()


def test_rows_of_other_weights_options_arguments_or_splits_are_not_resumed(capsys, pack, tmp_path):
    saved, output = tmp_path / "vit.safetensors", tmp_path / "sweep.json"
    plain = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=7)
    lf.save(plain, saved)
    rest = ["--data", pack, "--vary", "keep_rate=0.5", "--output"]
    ours = ["sweep", str(saved), "--apply", "evit", *rest, str(output)]
    named = ["sweep", *LEAN, *rest, str(tmp_path / "named.json")]
    assert [main(ours), main(ours), main(named), main(named)] == [0] * 4
    capsys.readouterr()
    for other in (
        [*ours, "--split", "train"],
        [*ours[:3], "evit:at=(1,)", *ours[4:]],
        [*named, "--set", "mlp_ratio=2"],
    ):
        assert main(other) == 2, other
        assert "another run" in capsys.readouterr().err
    lf.save(randomise(plain), saved)
    assert main(ours) == 2
    assert "another run" in capsys.readouterr().err


def test_rows_of_as_many_other_images_of_the_same_name_are_not_resumed(capsys, pack, tmp_path):
    (tmp_path / "other").mkdir()
    other, output = pack_of(tmp_path / "other", seed=1), str(tmp_path / "sweep.json")
    command = ["sweep", *LEAN, "--vary", "keep_rate=0.5", "--output", output, "--data"]
    assert [main([*command, pack]), main([*command, pack])] == [0, 0]
    assert main([*command, other]) == 2
    assert "another run" in capsys.readouterr().err


def test_unknown_options_are_refused(capsys, pack):
    assert main(["sweep", *TINY, "--data", pack, "--vary", "keep_rate=1"]) == 2
    assert "has no run-time options to vary" in capsys.readouterr().err
    assert main(["sweep", *LEAN, "--data", pack]) == 2
    assert (
        "nothing to vary; give --vary OPTION=VALUE,VALUE with one of: fuse_tokens, keep_rate" in capsys.readouterr().err
    )
    assert main(["sweep", *LEAN, "--data", pack, "--vary", "idle=1"]) == 2
    assert "keep_rate" in capsys.readouterr().err


def test_a_tuple_is_one_value():
    lean = lf.apply(lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2), lf.EViT())
    assert settings(lean, ("keep_rate=(0.9,0.8,0.7),0.5",)) == [{"keep_rate": (0.9, 0.8, 0.7)}, {"keep_rate": 0.5}]
