"""The report: everything of a run on one page, which a real browser shows without an error on a phone too."""

import json
import shutil

import pytest
from browser import CHROMIUM, browsing
from families import backbone
from PIL import Image
from rich.table import Table
from sklearn.datasets import load_sample_image

import leanformer as lf
from leanformer import visualise
from leanformer.cli import main
from leanformer.measure import as_text, record, write_result


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder as training leaves it, with a picture and two result files."""
    folder = tmp_path_factory.mktemp("runs") / "lean <vit>"
    folder.mkdir()
    lines = [{"kind": "event", "event": "resumed"}]
    for update in range(1, 301):
        lines.append({"kind": "step", "update": update, "loss": 3 / update, "soft": 1 / update,
                      "learning_rate": 1e-3, "keep_rate": 0.7, "images_per_second": 100.0})  # fmt: skip
    lines += [{"kind": "epoch", "epoch": e, "update": 30 * e, "val_top1": 8.0 * e, "val_top5": 9.0 * e,
               "val_loss": 1 / e, "seconds": 1.0 * e} for e in range(1, 11)]  # fmt: skip
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st')
    (folder / "result.json").write_text(json.dumps({"val": {"top1": 80.0, "images": 100}, "seconds": 12.0}))
    (folder / "run.json").write_text(json.dumps({"recipe": {"epochs": 10}, "settings": {}, "command": ["x" * 200]}))
    photo = Image.fromarray(load_sample_image("china.jpg"))
    visualise.grad_cam(backbone("vit"), photo).save(folder / "pictures" / "cam.png")
    rows = [{"model": f"a model with a long name {i}", "mode": "eager", "batch": 1, "throughput": 10.0 * i,
             "macs": 10**9 * (9 - i)} for i in range(1, 4)]  # fmt: skip
    write_result(record("bench", rows), folder / "bench.json")
    profile = {"model": "vit", "mode": "eager", "batch": 1, "whole": 0.01, "parts": {"FFN": 0.005, "head": 0.001}}
    write_result(record("profile", [profile]), folder / "profile.json")
    table = Table("model", "top-1", title="handwritten digits")
    table.add_row("backbone", "93.6%")
    (folder / "table.txt").write_text(as_text(table))
    write_result(record("eval", [{"class": "n02099601", "recall": 0.5}]), folder / "classes.json")
    return folder


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    other = tmp_path_factory.mktemp("more") / "second"
    shutil.copytree(run, other)
    path = tmp_path_factory.mktemp("out") / "report.html"
    assert main(["report", str(run), str(other), "--output", str(path)]) == 0
    return path


def test_the_page_holds_curves_tables_and_pictures_and_asks_for_nothing_else(page):
    text = page.read_text()
    for told in ("training loss", "accuracy (%)", "keep rate", "images a second", "side by side", "lean &lt;vit&gt;"):
        assert told in text
    assert text.count("data:image/") == 2 * 9
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text


def test_a_table_of_a_terminal_is_a_table_of_the_page_and_ids_are_words(page):
    text = page.read_text()
    assert "┃" not in text
    assert '<th scope="col">model</th><th scope="col" class="number">top-1</th>' in text
    assert '<td>backbone</td><td class="number">93.6%</td>' in text
    assert "n02099601" not in text
    assert "golden retriever" in text


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Chrome on this machine")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_browser_shows_the_page_without_an_error(page, tmp_path, width, scheme, screenshot):
    with browsing(tmp_path / "profile") as window:
        window.open(page.as_uri(), width=width, scheme=scheme)
        screenshot(window, f"report_{width}_{scheme}")
        light = window.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light == (scheme == "light")
        cut = window.ask("[...document.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth).length")
        assert (cut > 0) == (width == 390), "wide tables scroll in their own boxes on a phone"
        assert window.ask("innerWidth") == width
        assert window.ask("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert window.ask("document.images.length") == 2 * 9
        assert window.ask("document.documentElement.scrollWidth") <= width
        assert window.ask("Math.max(...[...document.images].map(i => i.getBoundingClientRect().right))") <= width
        assert window.ask("Math.min(...[...document.images].map(i => i.getBoundingClientRect().width))") >= 250
        told = window.messages
    wrong = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
    assert not [event for event in told if event.get("method") in wrong]
    asked = [e["params"]["request"]["url"] for e in told if e.get("method") == "Network.requestWillBeSent"]
    assert all(url.startswith(("file:", "data:")) for url in asked)


def test_a_real_run_can_be_reported(tmp_path):
    import torch

    model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=2)
    data = torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.arange(8) % 2
    recipe = lf.recipes.plain(epochs=1, batch_size=4)
    lf.train.fit(
        model, recipe=recipe, data=data, val=data, output=tmp_path / "run", device="cpu", quiet=True, log_every=1
    )
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "r.html")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "training loss" in text
    assert "val top1" in text


def test_runs_are_called_by_what_tells_them_apart(tmp_path):
    runs = [tmp_path / name for name in ("evit_0.7", "evit_0.5", "first/lean", "second/lean")]
    for run in runs:
        run.mkdir(parents=True)
        (run / "result.json").write_text(json.dumps({"seconds": 1.0}))
    for first, second in (runs[:2], runs[2:]):
        assert main(["report", str(first), str(second), "--output", str(tmp_path / "r.html")]) == 0
        text = (tmp_path / "r.html").read_text().replace("<wbr>", "")
        for run in (first, second):
            name = run.name if "evit" in run.name else f"{run.parent.name}/{run.name}"
            assert text.count(f">{name}<") == 2, "in the table and as a heading"


def test_what_cannot_be_reported_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "nothing to report" in capsys.readouterr().err
