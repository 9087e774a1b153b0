"""Two processes learn and judge what one does with the whole batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scenes import scenes, small_detector, small_segmenter
from together import together

import leanformer as lf

RECIPE = lf.train.plain(
    epochs=1, batch_size=4, optimizer="momentum", learning_rate=0.01, schedule="constant", weight_decay=0.0, flip=0.5
)


def one_update(folder: str, process: int = 0, kind: str = "detection", **options: Any) -> None:
    """One update of plain gradient descent, and the figures after it."""
    torch.set_num_threads(1)
    maps = kind == "segmentation"
    model = small_segmenter() if maps else small_detector(side=32)
    model.drop = torch.nn.Identity()  # each process draws its own
    result = lf.tasks.fit(
        model, recipe=RECIPE, data=scenes(0, 4, 32, label_map=maps, masks=False),
        val=scenes(9, 3, 32, label_map=maps, masks=False), task=lf.tasks.Segmentation(size=(32, 32)) if maps else None,
        output=folder, device="cpu", quiet=True, workers=0, **options,
    )  # fmt: skip
    found = result.evaluation
    assert found is not None
    if process == 0:
        kept = {"weights": result.model.state_dict(), "figures": found.summary(), "images": found.images}
        torch.save(kept, Path(folder) / "found.pt")


@pytest.mark.exhaustive
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_two_processes_learn_and_judge_what_one_does(tmp_path, kind, shard):
    one_update(str(tmp_path / "alone"), kind=kind)
    together(str(tmp_path / "both"), step=one_update, kind=kind, shard=shard)
    alone, both = (torch.load(tmp_path / name / "found.pt", weights_only=True) for name in ("alone", "both"))
    assert both["images"] == alone["images"] == 3
    assert both["figures"] == pytest.approx(alone["figures"], abs=0.5)
    for key, weight in alone["weights"].items():
        torch.testing.assert_close(both["weights"][key], weight, rtol=1e-4, atol=1e-5)
