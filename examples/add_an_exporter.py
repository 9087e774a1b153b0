"""A file format of your own: PyTorch's exported program, compressed.

A `Target` says what the format is called, what writes it from a traced program, and what opens it again as a function
from images to logits. `export` does the rest: it fuses, traces, writes beside the wanted place, opens the file in its
own runtime, compares the answers with the model's, and gives the file its name only if they agree.

    python examples/add_an_exporter.py
"""

import gzip
import io
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

import leanformer as lf
from leanformer.export import Run, Target
from leanformer.export.source import export


def write(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    """Write the program; the metadata (the model's card, and how it was exported) travel in the same file."""
    whole = io.BytesIO()
    torch.export.save(program, whole, extra_files={f"{key}.json": value for key, value in metadata.items()})
    path.write_bytes(gzip.compress(whole.getbuffer()))


def open_compressed(path: Path) -> Run:
    """The file as a function."""
    program = torch.export.load(io.BytesIO(gzip.decompress(path.read_bytes()))).module()

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return program(images)

    return run


COMPRESSED = Target(name="compressed", suffix=".pt2.gz", runtime="torch", write=write, open=open_compressed)


def main() -> None:
    """Export a small lean ViT and say how well the file agrees with it."""
    backbone = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=10)
    model = lf.apply(backbone, lf.EViT(keep_rate=0.5))
    with tempfile.TemporaryDirectory() as folder:
        done = export(model, Path(folder) / "lean.pt2.gz", COMPRESSED)
        print(f"{done.path.name}: {done.size} bytes, {done.parity}")


if __name__ == "__main__":
    main()
