"""Several models behind one address, their embeddings, fast forms, and files that change while they are served."""

import os
import threading
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
pytest.importorskip("python_multipart", reason="the extra 'serve' is not installed")
httpx = pytest.importorskip("httpx", reason="httpx, the tests' client, is not installed")

from serving import NAMES, picture, serving, tiny, tiny_served  # noqa: E402

import leanformer as lf  # noqa: E402
from leanformer.cli import main, serve_work  # noqa: E402
from leanformer.serve import Decoder, Served, Watched, of_model  # noqa: E402
from leanformer.serve.reload import Reloader, stamp_of  # noqa: E402


def biased(favourite: int) -> torch.nn.Module:
    """A model that always says the same class."""
    model = tiny()
    with torch.no_grad():
        model.head.bias[favourite] += 100
    return model


def first_class(url: str, path: str = "/classify") -> str:
    return httpx.post(f"{url}{path}", content=picture()).raise_for_status().json()["images"][0]["classes"][0]["name"]


def test_models_are_asked_by_name_and_the_first_where_none_is_named():
    with serving([of_model(biased(1), "b", NAMES), of_model(biased(2), "c", NAMES)]) as url:
        asked = ("/classify", "/classify?model=c", "/models/b/classify", "/models/c/classify")
        assert [first_class(url, path) for path in asked] == ["bee", "cat", "bee", "cat"]
        told = httpx.get(f"{url}/models").json()
        missing = httpx.post(f"{url}/models/d/classify", content=picture())
        text = httpx.get(f"{url}/metrics").text
    assert (told["default"], [each["model"] for each in told["models"]]) == ("b", ["b", "c"])
    assert (missing.status_code, missing.json()["detail"]) == (404, "no model is called 'd'; there is: b, c")
    assert 'leanformer_requests_total{model="c",status="200"} 2.0' in text
    assert 'model="d"' not in text  # strangers cannot make the list of series grow


def test_an_embedding_is_what_the_model_computes_before_its_head():
    model = tiny(lf.EViT())
    with serving(of_model(model, "tiny", NAMES)) as url:
        told = httpx.post(f"{url}/embed", content=picture()).raise_for_status().json()
    seen = Decoder(lf.core.input_of(model))(picture()).pixels[None]
    expected = model.forward_head(model.forward_features(seen), pre_logits=True)[0]
    assert told["model"] == "tiny"
    torch.testing.assert_close(torch.tensor(told["images"][0]["embedding"]), expected, atol=1e-5, rtol=1e-4)


def test_a_model_without_embeddings_says_so():
    served = Served(name="x", runtime="test", config=tiny_served().config, classes=NAMES, forward=print)
    with serving(served) as url:
        refused = httpx.post(f"{url}/embed", content=picture())
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        "x gives no embeddings; it answers POST /models/x/classify",
    )


def test_a_distilled_model_with_two_heads_gives_classes_and_embeddings():
    model = lf.create("deit_tiny_distilled_patch16_224", img_size=32, depth=1, num_classes=5)
    served = of_model(model, "two", NAMES)
    images = torch.randn(2, 3, 32, 32)
    assert [len(each.probabilities) for each in served(images)] == [5, 5]
    assert [vector.shape for vector in served.vectors(images)] == [(192,), (192,)]


class Uncompiled(lf.speed.Optimized):
    """A fast form without the minutes that compiling takes."""

    def __init__(self, model: torch.nn.Module, batch: int):
        from leanformer.speed.compiled import Compiled
        from leanformer.speed.optimized import Choice

        compiled = Compiled.__new__(Compiled)
        compiled.module, compiled._run = model, model  # type: ignore[assignment]
        super().__init__(compiled, model, Choice(batch), torch.zeros(batch, 3, 32, 32))
        self.sizes: list[int] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(images))
        return super().forward(images)


@pytest.mark.parametrize("given", ["optimised", "plain"])
def test_an_optimised_model_answers_alike_and_tells_kept_patches_when_asked(given):
    plain, images = tiny(lf.EViT()), torch.randn(3, 3, 32, 32)
    fast: list[Uncompiled] = []

    def make(model: torch.nn.Module) -> Uncompiled:
        fast.append(Uncompiled(model, 4))
        return fast[-1]

    model = make(plain) if given == "optimised" else plain
    served = of_model(model, "fast", NAMES, None if given == "optimised" else make)
    expected = of_model(plain, "plain", NAMES)
    for one, other in zip(served(images), expected(images)):
        torch.testing.assert_close(one.probabilities, other.probabilities)
    assert [each.kept for each in served(images)] == [None] * 3
    assert [each.kept for each in served.tell(images)] == [each.kept for each in expected(images)]
    torch.testing.assert_close(served.vectors(images), expected.vectors(images))
    assert set(fast[0].sizes) == {4}  # the only size that was compiled
    served(images[:1])
    assert fast[0].sizes.count(4) == len(fast[0].sizes)
    with serving(served) as url:
        kept = [httpx.post(f"{url}/classify{ask}", content=picture()).json()["images"][0]["kept"]
                for ask in ("", "?kept=true")]  # fmt: skip
    assert kept[0] is None
    assert kept[1]["grid"] == [4, 4]


def test_a_changed_file_is_served_without_dropping_a_request(tmp_path):
    path = lf.save(biased(1), tmp_path / "m.safetensors")
    watched = Watched("m", path, lambda: of_model(lf.load(path), "m", NAMES))
    names: list[str] = []
    done = threading.Event()

    def ask(url: str) -> None:
        while not done.is_set():
            names.append(first_class(url))

    with serving(watched.open(), watched=[watched], look_every=0.05) as url:
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(4)]
        [thread.start() for thread in threads]
        lf.save(biased(2), path)
        deadline = time.monotonic() + 20
        while (not names or names[-1] != "cat") and time.monotonic() < deadline:
            time.sleep(0.02)
        done.set()
        [thread.join() for thread in threads]
        text = httpx.get(f"{url}/metrics").text
    assert set(names) == {"bee", "cat"}
    assert set(names[names.index("cat") + 8 :]) <= {"cat"}
    assert 'leanformer_requests_total{model="m",status="200"}' in text
    assert 'status="50' not in text
    assert 'leanformer_reloads_total{model="m",result="ok"} 1.0' in text


def test_a_damaged_file_leaves_the_model_before_it_in_place(tmp_path):
    path = lf.save(biased(1), tmp_path / "m.safetensors")
    noted: list[bool] = []
    opened: list[Served] = []
    watched = Watched("m", path, lambda: of_model(lf.load(path), "m", NAMES))
    reloader = Reloader([watched], opened.append, 60.0, lambda name, fine: noted.append(fine))
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    reloader.look()
    assert noted == []  # it may still be written
    reloader.look()
    reloader.look()
    assert (noted, opened) == ([False], [])
    path.write_bytes(whole)
    os.utime(path, (1, 1))
    reloader.look(), reloader.look()
    reloader.close()
    assert (noted, len(opened)) == ([False, True], 1)


def test_a_file_that_is_replaced_while_the_service_starts_is_opened_anew(tmp_path):
    path = lf.save(biased(1), tmp_path / "m.safetensors")
    watched, opened = Watched("m", path, lambda: of_model(lf.load(path), "m", NAMES)), []
    watched.open()
    lf.save(biased(2), path)
    reloader = Reloader([watched], opened.append, 60.0)
    reloader.look(), reloader.look()
    reloader.close()
    assert len(opened) == 1


def test_a_command_line_notes_how_files_are_before_it_opens_them(tmp_path, monkeypatch):
    path, seen = lf.save(tiny(), tmp_path / "m.safetensors"), []
    before = stamp_of(path)
    monkeypatch.setattr(serve_work, "open_served", lambda *_: os.utime(path, (1, 1)))
    monkeypatch.setattr(serve_work, "listen", lambda *given: seen.extend(given[6]))
    assert main(["serve", str(path)]) == 0
    assert [each.stamp for each in seen] == [before]
    assert stamp_of(path) != before


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a=FILE", "a=FILE"], "two models are called 'a'"),
        (["FILE", "b=FILE", "--name", "c"], "--name names one model, but there are 2"),
        (["FILE", "b=FILE", "--emit", "triton", "models"], "--emit writes one model; 2 were given"),
        (["=FILE"], "cannot be a model and its name"),
        (["FILE", "--reload", "-1"], "--reload must be a finite number above 0"),
        ([], "give at least one model"),
    ],
)
def test_models_that_cannot_be_told_apart_are_refused_in_one_line(words, line, tmp_path, capsys):
    path = lf.save(tiny(), tmp_path / "model.safetensors")
    assert main(["serve", *(word.replace("FILE", str(path)) for word in words)]) == 2
    assert line in capsys.readouterr().err


def test_a_command_line_opens_models_by_the_names_it_gives(tmp_path, monkeypatch):
    path = lf.save(tiny(lf.EViT()), tmp_path / "lean.safetensors")
    told: list[list[str]] = []
    seen: list[list[Path]] = []

    def listen(served, limits, max_batch, max_wait, host, port, watched, seconds):
        told.append([each.name for each in served])
        seen.append([each.path for each in watched])

    monkeypatch.setattr(serve_work, "listen", listen)
    assert main(["serve", str(path), f"full={path}"]) == 0
    assert main(["serve", str(path), "--reload", "0"]) == 0
    assert told == [["lean", "full"], ["lean"]]
    assert seen == [[path, path], []]


def test_arguments_are_for_the_models_given_by_name_and_files_may_stand_beside_them(tmp_path, monkeypatch):
    path = lf.save(tiny(), tmp_path / "lean.safetensors")
    told: list[list[str]] = []
    monkeypatch.setattr(serve_work, "listen", lambda served, *_: told.append([each.name for each in served]))
    small = ["--set", "depth=1", "--set", "img_size=32", "--set", "num_classes=5", "--device", "cpu"]
    assert main(["serve", str(path), "small=vit", *small]) == 0
    assert told == [["lean", "small"]]
    assert main(["serve", str(path), *small]) == 2  # with no model that they could be for


@pytest.mark.exhaustive
def test_the_file_of_an_optimised_model_is_served_in_its_fast_form(tmp_path, monkeypatch):
    plain = lf.fuse(tiny(lf.EViT()))
    path = lf.save(lf.optimize(plain, device="cpu", batch=4, search=False), tmp_path / "fast.safetensors")
    served: list[Served] = []
    monkeypatch.setattr(serve_work, "listen", lambda models, *rest: served.extend(models))
    assert main(["serve", str(path), "--device", "cpu", "--classes", str(_names(tmp_path))]) == 0
    images = torch.randn(4, 3, 32, 32)
    assert (served[0].runtime, served[0].batch) == ("torch, optimised", 4)
    for one, other in zip(served[0].tell(images), of_model(plain, "plain", NAMES)(images)):
        assert one.kept == other.kept
    for one, other in zip(served[0](images), of_model(plain, "plain", NAMES)(images)):
        torch.testing.assert_close(one.probabilities, other.probabilities, atol=1e-5, rtol=1e-4)


def _names(folder: Path) -> Path:
    (folder / "names.txt").write_text("\n".join(NAMES))
    return folder / "names.txt"
