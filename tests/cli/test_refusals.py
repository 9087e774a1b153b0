"""What a user can get wrong: one line that says what would work, exit code 2, and nothing left behind."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import leanformer as lf
from leanformer.cli import main
from leanformer.cli.errors import explain

SETS = ("img_size=16", "patch_size=4", "embed_dim=16", "depth=2", "num_heads=2", "num_classes=2")
TINY = ["vit", *(word for each in SETS for word in ("--set", each))]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A folder with images of two classes, a checkpoint, and files that are not what their names say."""
    root = tmp_path_factory.mktemp("world")
    for split in ("train", "val"):
        for name in ("a", "b"):
            (root / "data" / split / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (16, 16), (50 * number, 0, 99)).save(root / "data" / split / name / f"{number}.png")
    tiny = lf.create("vit", img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=2)
    lf.save(tiny, root / "tiny.safetensors")
    weights = dict(tiny.state_dict())
    save_file({key: torch.zeros(value.shape, dtype=torch.int32) for key, value in weights.items()},
              root / "integers.safetensors", {"leanformer": json.dumps(lf.core.card_json(tiny))})  # fmt: skip
    odd = {
        "sparse": torch.zeros(2, 2).to_sparse(), "meta": torch.empty(2, 2, device="meta"),
        "quantised": torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
    }  # fmt: skip
    for name, tensor in odd.items():
        torch.save(weights | {"head.bias": tensor}, root / f"{name}.pth")
    torch.save({3: torch.zeros(2)}, root / "numbers.pth")
    (root / "damaged.onnx").write_bytes(b"\x08\x07\x12\x00nonsense")
    (root / "damaged.safetensors").write_bytes(b"\xff" * 64)
    (root / "file").write_text("text")
    os.mkfifo(root / "pipe.jpg")
    return root


def refused(capsys, *arguments: object) -> str:
    """The one line that a command ends with."""
    assert main([str(argument) for argument in arguments]) == 2
    seen = capsys.readouterr()
    assert seen.err.count("\n") == 1, seen.err
    assert seen.err.startswith("leanformer: ")
    assert "Traceback" not in seen.err + seen.out
    return seen.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", *TINY, "--data", "DATA", "--device", "zz"], "no device 'zz' here; there is: cpu"),
        (["eval", *TINY, "--data", "DATA", "--device", "meta"], "no device 'meta'"),
        (["bench", *TINY, "--device", "cuda:77"], "no device 'cuda:77'"),
        (["profile", *TINY, "--device", "mps:5"], "no device 'mps:5'"),
        (["sweep", *TINY, "--data", "DATA", "--device", "zz"], "no device 'zz'"),
        (["serve", *TINY, "--device", "zz"], "no device 'zz'"),
        (["train", *TINY, "--data", "DATA", "--device", "zz", "--output", "run"], "no device 'zz'"),
        (
            ["calibrate", *TINY, "--apply", "repa", "--data", "DATA", "--output", "x", "--device", "zz"],
            "no device 'zz'",
        ),
        (["train", *TINY, "--data", "DATA", "--output", "WORLD/file"], "it is a file, give the name of a folder"),
        (["eval", *TINY, "--data", "DATA", "--output", "WORLD"], "it is a folder"),
        (["eval", *TINY, "--data", "DATA", "--output", "/proc/x.json"], "cannot write /proc/x.json"),
        (["eval", *TINY, "--data", "DATA", "--output", "WORLD/file/x.json"], "Not a directory"),
        (["apply", *TINY, "--output", "n" * 300], "File name too long"),
        (["apply", *TINY, "--output", "n" * 250], "File name too long"),
        (["apply", *TINY, "--output", "/dev/null"], "it is not a plain file"),
        (["train", *TINY, "--data", "DATA", "--output", "n" * 300], "File name too long"),
        (["demo", "--output", "WORLD/file"], "it is a file"),
        (["eval", *TINY, "--data", "DATA", "--batch-size", "0"], "--batch-size must be at least 1, not 0"),
        (["eval", *TINY, "--data", "DATA", "--workers", "-1"], "--workers must be at least 0"),
        (["calibrate", *TINY, "--apply", "repa", "--data", "DATA", "--output", "x", "--images", "0"], "--images must"),
        (["calibrate", *TINY, "--apply", "repa", "--data", "DATA", "--output", "x", "--seed", "-1"], "--seed must"),
        (["bench", *TINY, "--batches", "-1"], "--batches must be at least 1, not -1"),
        (["bench", *TINY, "--dtypes", "zz"], "unknown 'zz'; known: float32, bfloat16, float16"),
        (["bench", *TINY, "--modes", "zz"], "unknown 'zz'; known: eager"),
        (["bench", *TINY, "--repeats", "0"], "--repeats must be at least 1"),
        (["profile", *TINY, "--dtype", "zz"], "unknown 'zz'"),
        (["describe", *TINY, "--size", "-1", "-1"], "--size must be at least 1, not -1"),
        (["eval", *TINY, "--data", "DATA", "--set", "in_chans=1"], "3 channels, but the model takes 1"),
        (["describe", *TINY, "--set", "name=x"], "'name' has its own place on the command line"),
        (["describe", *TINY, "--set", "depth=3"], "'depth' is given twice"),
        (["describe", *TINY, "--set", "depth"], "'depth' is not option=value"),
        (["serve", *TINY, "--port", "99999"], "--port must be a number from 0 to 65535"),
        (["serve", *TINY, "--host", "999.1.1.1"], "cannot listen on --host 999.1.1.1"),
        (["serve", *TINY, "--timeout", "inf"], "--timeout must be a finite number above 0, not inf"),
        (["serve", *TINY, "--max-wait", "nan"], "--max-wait must be a finite number"),
        (["serve", "WORLD/damaged.onnx"], "damaged.onnx"),
        (["serve", "WORLD/damaged.onnx", "--emit", "triton", "models"], "damaged.onnx"),
        (["describe", "WORLD/integers.safetensors"], "of another kind: cls_token is int32"),
        (["describe", "WORLD/damaged.safetensors"], "not a whole safetensors file"),
        (["describe", *TINY, "--checkpoint", "WORLD/numbers.pth"], "has the key 3, which is no text"),
        (["describe", *TINY, "--checkpoint", "WORLD/sparse.pth"], "head.bias is of the layout sparse_coo"),
        (["describe", *TINY, "--checkpoint", "WORLD/meta.pth"], "head.bias is on the meta device"),
        (["describe", *TINY, "--checkpoint", "WORLD/quantised.pth"], "head.bias is quantised"),
        (["describe", *TINY, "--checkpoint", "WORLD"], "is a folder; give a file"),
        (["describe", *TINY, "--checkpoint", "deit_small"], "the checkpoint deit_small does not exist"),
        (["describe", *TINY, "--checkpoint", "WORLD/pipe.jpg"], "is not a plain file"),
        (["describe", "WORLD/file.txt"], "unknown model"),
        (["show", "grad-cam", *TINY, "--image", "WORLD/pipe.jpg"], "is not a plain file"),
        (["show", "grad-cam", *TINY, "--image", "nothing.jpg"], "nothing.jpg does not exist"),
        (["eval", *TINY, "--data", "DATA", "--crop", "nan"], "--crop must be above 0 and at most 1, not nan"),
        (["sweep", *TINY, "--data", "DATA", "--crop", "nan"], "--crop must be above 0"),
        (["backbones", "zz"], "unknown 'zz'; known: vision_transformer"),
        (["export", *TINY, "--output", "x.onnx", "--format", "zz"], "unknown format 'zz'; known: onnx"),
        (["export", *TINY, "--output", "x.onnx", "--preprocess", "0", "0"], "--preprocess must be at least 1"),
        (["export", *TINY, "--output", "x.onnx", "--size", "32", "32", "--any-size"], "--any-size contradict"),
        (
            ["train", *TINY, "--data", "DATA", "--output", "run", "--max-updates", "-3"],
            "max_updates must be a whole number from 1",
        ),
        (
            ["train", *TINY, "--data", "DATA", "--output", "r", "--recipe", "finetune:learning_rate=nan"],
            "learning_rate",
        ),
        (["train", *TINY, "--data", "DATA", "--output", "r", "--recipe", "finetune:drop_path=5"], "drop_path must be"),
        (["train", *TINY, "--data", "DATA", "--output", "r", "--recipe", "finetune:mixup=nan"], "mixup must be"),
        (["train", *TINY, "--data", "DATA", "--output", "r", "--recipe", "finetune:epochs=many"], "epochs must be"),
        (["bench", *TINY, "--compare-with", "WORLD/pipe.jpg"], "the result file WORLD/pipe.jpg is not a plain file"),
        (["apply", *TINY, "--apply", "x" * 9999, "--output", "x.safetensors"], "xxx'; known methods:"),
        (
            [
                "calibrate",
                *TINY[:-1],
                "num_classes=3",
                "--apply",
                "repa",
                "--data",
                "DATA",
                "--output",
                "lean.safetensors",
                "--evaluate-on",
                "val",
            ],
            "has 2 classes, but the model's head has 3",
        ),
        (["evl"], "unknown verb 'evl'; did you mean eval"),
        ([], "leanformer --help lists them"),
        (["eval"], "leanformer eval --help tells the options"),
        (["eval", *TINY, "--data", "DATA", "--batch-size", "many"], "'many'; leanformer eval --help"),
        (["eval", *TINY, "--data", "DATA", "--bach-size", "1"], "--bach-size"),
    ],
)
def test_it_is_one_line_and_nothing_is_left(capsys, world, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    filled = [word.replace("DATA", str(world / "data")).replace("WORLD", str(world)) for word in arguments]
    line = refused(capsys, *filled)
    assert said.replace("WORLD", str(world)) in line
    assert len(line) < 1000
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_with_the_name_of_an_image_is_a_damaged_image(capsys, world, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "val" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "val" / name / "0.png")
    os.mkfifo(tmp_path / "val" / "a" / "x.jpg")
    output = tmp_path / "eval.json"
    assert main(["eval", *TINY, "--data", str(tmp_path), "--workers", "0", "--output", str(output)]) == 0
    assert json.loads(output.read_text())["damaged"] == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file_is_told_as_that(capsys, world, tmp_path):
    (tmp_path / "secret.safetensors").write_bytes((world / "tiny.safetensors").read_bytes())
    (tmp_path / "secret.safetensors").chmod(0)
    assert "Permission denied" in refused(capsys, "describe", tmp_path / "secret.safetensors")


def test_an_unreadable_file_is_not_told_as_missing(capsys, world, monkeypatch):
    def deny(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", deny)
    assert "cannot be read: Permission denied" in refused(capsys, "describe", world / "tiny.safetensors")


def test_export_to_a_full_disk_is_one_line(world, tmp_path):
    """The limit on the size of files stands for the end of the disk."""
    command = [sys.executable, "-m", "leanformer.cli", "export", str(world / "tiny.safetensors"), "--format", "torch"]

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run([*command, "--output", str(tmp_path / "x.pt2")], capture_output=True, text=True, timeout=120,
                          preexec_fn=limit)  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_ours_names_a_file_with_the_traceback(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("leanformer.measure.describe", lambda *_: {}["nothing"])
    assert main(["describe", *TINY]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "KeyError" in line
    (kept,) = tmp_path.iterdir()
    assert str(kept) in line
    assert "Traceback" in kept.read_text()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("a\n  b"), 2, "a b"),
        (OSError(28, "No space left on device", "x"), 2, "x: No space left on device"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("CUDA out of memory. Tried"), 2, "not enough memory"),
        (TypeError("x"), 1, "a fault of leanformer"),
    ],
)
def test_errors_are_told_by_their_kind(error, code, said, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    line, found = explain(error)
    assert found == code
    assert said in line


def test_an_interrupt_ends_with_130_and_without_words(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("leanformer.measure.describe", interrupt)
    assert main(["describe", *TINY]) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m leanformer.cli --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_kept_in_half_of_float32_work_in_every_verb(world, tmp_path, monkeypatch, dtype, capsys):
    monkeypatch.chdir(tmp_path)
    lf.save(lf.load(world / "tiny.safetensors").to(dtype), "half.safetensors")
    data = ["--data", str(world / "data"), "--device", "cpu"]
    for words in (
        ["eval", "half.safetensors", *data, "--workers", "0"],
        ["calibrate", "half.safetensors", "--apply", "repa:refine_steps=1", *data, "--output", "lean.safetensors"],
        ["train", "half.safetensors", *data, "--output", "run", "--max-updates", "1", "--recipe",
         "plain:epochs=1,batch_size=2", "--workers", "0", "--teacher", "half.safetensors"],
    ):  # fmt: skip
        assert main(words) == 0, capsys.readouterr().err


def test_in_python_weights_too_coarse_to_learn_with_are_refused(world):
    coarse = lf.load(world / "tiny.safetensors").half()
    with pytest.raises(ValueError, match=r"torch.float16, too coarse to learn with; give model.float\(\)"):
        lf.calibrate(coarse, coarse, torch.zeros(2, 3, 16, 16))
    assert lf.train.evaluate(coarse, (torch.zeros(2, 3, 16, 16).byte(), torch.arange(2)), device="cpu").images == 2
