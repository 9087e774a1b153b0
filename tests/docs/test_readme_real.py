"""The README's Python lines on a ViT-Ti with its ImageNet weights: what they start from, and what comes out of them."""

import json
import re
from pathlib import Path

import pytest
from blocks import blocks
from safetensors.torch import load_file, save_file
from torchvision.transforms.functional import to_pil_image

import leanformer as lf

SMALLER = (
    ('"deit_small_patch16_224", checkpoint="deit_small.pth"', '"vit_tiny_patch16_224", checkpoint="vit.safetensors"'),
    (
        "speedup=2.0",
        'speedup=1.5, runtime="macs", methods=("tome",), sizes=False, evaluations=2, choosing=32, epochs=1',
    ),
    ("epochs=30", "epochs=1, batch_size=32"),
    ('data="imagenet/"', 'data=train, val=val, output="fit", max_updates=4, device="cpu"'),
    ("batch=256", 'batch=8, device="cpu", search=False'),
)
"""What stands in the README → what runs on a CPU in minutes; the model is trained all the same."""


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_readmes_python_lines_start_from_the_trained_model(shared: Path, tmp_path, monkeypatch):
    weights, photographs = (shared / "data" / name for name in (
        "vit_tiny_patch16_224_in1k_fp16.safetensors", "nips17_imagenet_224.npz",
    ))  # fmt: skip
    if not weights.is_file() or not photographs.is_file():
        pytest.skip("shared/data has no ViT-Ti weights or no photographs")
    monkeypatch.chdir(tmp_path)
    save_file({key: value.float() for key, value in load_file(weights).items()}, "vit.safetensors")
    data = lf.data.open_data(f"pack:{photographs}")
    photos = Path("photos")
    photos.mkdir()
    for number in range(96):
        to_pil_image(data.images[number]).save(photos / f"{number:03d}.jpg")
    names = {"train": (data.images[:600], data.labels[:600]), "val": (data.images[700:], data.labels[700:])}
    exec(_small(next(block.text for block in blocks("README.md") if block.language == "python")), names)

    told = [json.loads(line) for line in Path("fit/log.jsonl").read_text().splitlines()]
    start = next(line for line in told if line.get("event") == "training starts from")
    teacher = lf.train.evaluate(names["teacher"], names["val"], device="cpu").top1
    print(f"teacher {teacher:.1f}%, training starts from {start['top1']:.1f}%")
    assert teacher > 75
    assert start["top1"] > teacher / 2, "uncalibrated, the same student starts at 0%"
    assert Path("lean.onnx").is_file()
    assert Path("answers.parquet").is_file()


def _small(text: str) -> str:
    for stands, runs in SMALLER:
        assert stands in text, f"the README no longer says {stands}"
        text = text.replace(stands, runs)
    return re.sub(r"\s+#.*", "", text)
