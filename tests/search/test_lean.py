"""The whole job on a tiny ViT, by multiplications instead of time, so that every run is the same."""

import json

import pytest
import torch
from browser import CHROMIUM, browsing
from PIL import Image

import leanformer as lf
from leanformer.search import job
from leanformer.search.choose import Chooser, told
from leanformer.search.cost_table import measure_costs
from leanformer.search.distil import Distiller, Interrupted
from leanformer.search.explore import Candidate, Explorer
from leanformer.search.final import Finish
from leanformer.search.judge import Verdict
from leanformer.search.memory import Memory
from leanformer.search.plan import Plan
from leanformer.search.progress import Progress
from leanformer.search.target import Target

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 3}
WITHOUT_LABELS = torch.zeros(80, 3, 32, 32, dtype=torch.uint8)
QUICK = {
    "device": "cpu", "batch": 2, "runtime": "macs", "methods": ("tome",), "sizes": False, "choosing": 16,
    "evaluations": 1, "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return lf.create("vit", **TINY).eval()


@pytest.fixture(scope="module")
def data():
    pixels = torch.rand(80, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return (pixels * 255).to(torch.uint8), torch.arange(80) % 3


@pytest.fixture(autouse=True)
def one_table_for_all(monkeypatch, request):
    """The costs of the one teacher are counted once, and one test alone draws the page."""
    if "exhaustive" not in request.keywords:
        monkeypatch.setattr(job, "measure_costs", lambda teacher, space, clock, done: table_of(teacher, space, clock))
        monkeypatch.setattr(job.Job, "_write_page", lambda *_: None)


TABLES: dict = {}


def table_of(teacher, space, clock):
    key = tuple(space.choices)
    if key not in TABLES:
        TABLES[key] = measure_costs(teacher, space, clock)
    return TABLES[key]


@pytest.fixture(scope="module")
def done(teacher, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lean")
    return lf.lean(teacher, data, speedup=1.3, train=False, output=folder, **QUICK)


def test_the_target_is_met_as_measured_and_the_file_is_the_model(done):
    assert done.met
    assert 1.3 / 1.02 <= done.speedup < 1.6
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(lf.load(done.files[0])(images), done.model(images))
    record = json.loads((done.folder / "plan.json").read_text())
    assert Plan.from_json(record["chosen"]["plan"]) == done.plan
    assert record["final"]["took"] > 0
    steps = [each["step"].split(" of ")[0] for each in record["steps"]]
    assert [steps[0], steps[1], steps[2], steps[-1]] == [
        "timing the model as it is", "timing its parts", "searching plans", "timing and judging the result"
    ]  # fmt: skip
    assert sum(each["seconds"] for each in record["steps"]) <= record["final"]["took"] + 0.1 * len(steps)
    timed = [each for each in record["candidates"] if "measured" in each]
    assert done.plan.to_json() in [each["plan"] for each in timed]
    assert all(each["predicted"] <= record["teacher"]["seconds"] / 1.29 for each in timed)


def test_the_page_of_a_run_that_timed_and_trained_nothing_says_so(done):
    words = (done.folder / "report.html").read_text()
    assert "times fewer multiplications; nothing was timed" in words
    assert "million multiplications an image" in words
    assert "images a second" not in words
    assert "<dt>trained on</dt><dd>nothing</dd>" in words.replace("\n", "")
    assert "agreement on 20 of them" in words
    assert "searching plans of" in words


def test_the_callers_model_stays_in_its_mode(teacher, data):
    own = lf.apply(teacher).train()
    lf.lean(own, data, speedup=1.0, train=False, **QUICK)
    assert own.training


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium or Chrome on this machine")
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_of_a_run_fits_a_phone_and_a_desk(done, tmp_path, screenshot, width, scheme):
    with browsing(tmp_path / "profile") as window:
        window.open((done.folder / "report.html").as_uri(), width=width, scheme=scheme)
        screenshot(window, f"lean_{width}_{scheme}")
        assert window.ask("document.documentElement.scrollWidth") <= width
        assert window.ask("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        words = window.ask("document.body.innerText")
    assert "The target (speed-up 1.3) is met" in words
    assert "counted for" in words


def test_a_finished_run_is_read_again_and_not_made_again(done, teacher, data, monkeypatch):
    monkeypatch.setattr(Explorer, "best", lambda *_, **__: pytest.fail("searched again"))
    monkeypatch.setattr(Finish, "__call__", lambda *_, **__: pytest.fail("timed again"))
    again = lf.lean(teacher, data, speedup=1.3, train=False, output=done.folder, **QUICK)
    assert (again.plan, again.speedup, again.met) == (done.plan, done.speedup, done.met)


@pytest.fixture(scope="module")
def slimmed(teacher, data, tmp_path_factory):
    given = {**QUICK, "methods": ("sit",), "evaluations": 4}
    return lf.lean(teacher, data, speedup=1.4, epochs=1, output=tmp_path_factory.mktemp("slim"), **given)


def test_a_plan_that_slims_is_trained_written_read_and_told_of(slimmed):
    record = json.loads((slimmed.folder / "plan.json").read_text())
    assert slimmed.met
    assert [name for name, _ in slimmed.plan.shares] == ["sit"]
    assert Plan.from_json(record["chosen"]["plan"]) == slimmed.plan
    assert record["distilled"]["kept"] in ("trained", "fitted")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(lf.load(slimmed.files[0])(images), slimmed.model(images))
    page = (slimmed.folder / "report.html").read_text()
    assert "Token slimming by" in page
    assert "patches kept" not in page.lower()
    first, share = slimmed.plan.shares[0][1][0]
    assert f"SiT {share:.0%}" in page
    assert f"<td>blocks.{first}</td>" in page


def test_a_folder_of_another_run_or_of_other_images_is_refused(done, teacher, data):
    with pytest.raises(ValueError, match="images have changed"):
        lf.lean(teacher, (data[0] ^ 1, data[1]), speedup=1.3, train=False, output=done.folder, **QUICK)
    with pytest.raises(ValueError, match="other target"):
        lf.lean(teacher, data, speedup=1.4, train=False, output=done.folder, **QUICK)


def test_a_folder_of_other_methods_or_of_a_model_with_its_classes_in_another_order_is_refused(teacher, data, tmp_path):
    given = {**QUICK, "methods": (), "sizes": True, "speedup": 1.3, "train": False, "output": tmp_path}
    assert not lf.lean(teacher, data, **given).plan.shares
    with pytest.raises(ValueError, match="other search"):
        lf.lean(teacher, data, **{**given, "methods": None})
    turned = lf.apply(teacher)
    turned.head.weight.data = turned.head.weight.data.flip(0)
    with pytest.raises(ValueError, match="other weights"):
        lf.lean(turned, data, **given)


def test_an_interrupted_search_says_how_to_go_on_and_forgets_no_verdict(teacher, data, tmp_path, monkeypatch):
    lines: list[str] = []
    asked = {**QUICK, "quiet": False, "said": lines.append}

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Chooser, "_timed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lf.lean(teacher, data, speedup=1.3, train=False, output=tmp_path, **asked)
    assert f"goes on from what lies in {tmp_path}" in lines[-1]
    monkeypatch.undo()
    monkeypatch.setattr("leanformer.search.choose.ROUNDS", 1)  # a second one asks for other plans
    monkeypatch.setattr("leanformer.search.judge.Judge.model", lambda *_: pytest.fail("judged again"))
    assert lf.lean(teacher, data, speedup=1.3, train=False, output=tmp_path, **QUICK).plan.shares


def test_an_interrupted_training_goes_on_where_it_was(teacher, data, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise Interrupted

    monkeypatch.setattr(Distiller, "distilled", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lf.lean(teacher, data, speedup=1.3, epochs=1, output=tmp_path, **QUICK)
    monkeypatch.undo()
    monkeypatch.setattr(Explorer, "best", lambda *_, **__: pytest.fail("searched again"))
    result = lf.lean(teacher, data, speedup=1.3, epochs=1, output=tmp_path, **QUICK)
    assert result.record["start"] is not None  # it was trained


def test_a_training_of_some_minutes_goes_on_with_the_epochs_that_it_began_with(teacher, data, tmp_path, monkeypatch):
    paces = iter((0.01, 0.02))
    monkeypatch.setattr(Distiller, "_pace", lambda *_: next(paces))
    fitted = Distiller._fit

    def interrupt(self, *given, **named):
        fitted(self, *given, **{**named, "max_updates": 1})
        raise Interrupted

    monkeypatch.setattr(Distiller, "_fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lf.lean(teacher, data, speedup=1.3, minutes=0.005, output=tmp_path, **QUICK)
    began = json.loads((tmp_path / "plan.json").read_text())["training"]
    monkeypatch.setattr(Distiller, "_fit", fitted)
    result = lf.lean(teacher, data, speedup=1.3, minutes=0.005, output=tmp_path, **QUICK)
    assert result.record["training"] == began


TARGETS = Target(curve=(1.6, 1.3)).points()


def test_a_training_of_shared_weights_that_loses_is_not_kept(teacher, data):
    ruin = lf.recipes.finetune(epochs=2, batch_size=8, learning_rate=3.0, clip_grad=None, warmup_epochs=0)
    result = lf.lean(teacher, data, curve=(1.3, 1.6), shared=True, recipe=ruin, **QUICK)
    assert result.record["distilled"]["kept"] == "fitted"
    for point in result.curve:
        assert torch.equal(point.model.head.weight, teacher.head.weight)
    assert result.curve[0].plan != result.curve[1].plan


def test_a_training_that_loses_is_not_kept(teacher, data, tmp_path):
    ruin = lf.recipes.finetune(epochs=2, batch_size=8, learning_rate=3.0, clip_grad=None, warmup_epochs=0)
    result = lf.lean(teacher, data, speedup=1.3, recipe=ruin, output=tmp_path / "ruined", **QUICK)
    told_of = json.loads((tmp_path / "ruined" / "plan.json").read_text())["distilled"]
    assert told_of["kept"] == "fitted"
    assert all(torch.equal(result.model.state_dict()[name], tensor) for name, tensor in teacher.state_dict().items())


def test_what_training_cannot_take_is_refused_before_anything_is_timed(teacher, data, monkeypatch):
    monkeypatch.setattr(job.Job, "_costs", lambda _: pytest.fail("timed"))
    large = lf.recipes.finetune(epochs=1, batch_size=256)
    with pytest.raises(ValueError, match="a batch of 256 is more than the 44 images"):
        lf.lean(teacher, data, speedup=1.3, recipe=large, **QUICK)
    grey = data[0][:, :1].contiguous()
    with pytest.raises(ValueError, match="1 channels, but the model takes 3"):
        lf.lean(teacher, grey, judge=data, speedup=1.3, **QUICK)


def test_a_training_that_loses_is_told_of_by_what_it_is_judged_by(teacher, data, monkeypatch):
    """Answers can agree more often, and yet be further from the model's."""
    verdicts = {"before": Verdict([0.1] * 4, [1, 1, 0, 0]), "after": Verdict([0.2] * 4, [1, 1, 1, 0])}
    monkeypatch.setattr("leanformer.search.judge.Judge.__call__", lambda *_: verdicts["before"])
    monkeypatch.setattr("leanformer.search.judge.Judge.verdict", lambda *_: verdicts["after"])
    lines: list[str] = []
    asked = {**QUICK, "quiet": False, "said": lines.append}
    result = lf.lean(teacher, data, speedup=1.3, epochs=1, **asked)
    told_of = result.record["distilled"]
    assert (told_of["kept"], told_of["loss_before"], told_of["loss_after"]) == ("fitted", 0.1, 0.2)
    (line,) = [line for line in lines if "further from the model's" in line]
    assert "divergence 0.1 → 0.2" in line


def test_shared_weights_of_plans_that_change_nothing_are_not_trained(teacher, data, monkeypatch):
    monkeypatch.setattr(Distiller, "distilled", lambda *_, **__: pytest.fail("trained"))
    result = lf.lean(teacher, data, curve=(1.0,), shared=True, epochs=1, **QUICK)
    assert (result.plan, result.met) == (Plan((32, 32)), True)


def test_a_curve_has_a_model_for_each_speed(teacher, data, tmp_path):
    result = lf.lean(teacher, data, curve=(1.6, 1.3), train=False, output=tmp_path, **QUICK)
    assert [round(each.speedup, 1) for each in result.curve] == [1.3, 1.6]
    assert result.plan == result.curve[1].plan != result.curve[0].plan
    assert [each.files[0].name for each in result.curve] == ["lean_1.3x.safetensors", "lean_1.6x.safetensors"]
    assert [entry["final"]["met"] for entry in result.record["curve"]] == [True, True]
    assert [row["target"] for row in job.curve_rows(list(zip(TARGETS, result.record["curve"])))] == [
        "1.3 times",
        "1.6 times",
    ]


def test_models_of_a_shared_curve_have_the_same_trained_weights(teacher, data, monkeypatch):
    monkeypatch.setattr(job.Job, "_gained", lambda *_: True)  # of what random weights answer there is little to learn
    result = lf.lean(teacher, data, curve=(1.3, 1.6), shared=True, epochs=1, **QUICK)
    gentle, strong = (each.model for each in result.curve)
    assert result.curve[0].plan != result.curve[1].plan
    for name, tensor in gentle.state_dict().items():
        torch.testing.assert_close(strong.state_dict()[name], tensor)
    assert not torch.equal(gentle.head.weight, teacher.head.weight)


def test_a_target_out_of_reach_names_the_fastest_plan_and_what_it_loses(teacher, data):
    lines = []
    result = lf.lean(teacher, data, speedup=50, train=False, **{**QUICK, "quiet": False, "said": lines.append})
    assert not result.met
    (line,) = [line for line in lines if "nothing takes" in line]
    assert "times as fast" in line
    assert "% of the images" in line


def test_the_model_itself_is_not_timed_against_itself_where_nothing_is_faster(teacher, data, monkeypatch):
    monkeypatch.setattr(Explorer, "fastest", lambda _: Plan((32, 32)))
    monkeypatch.setattr(Chooser, "_measured", lambda *_: pytest.fail("timed"))
    lines: list[str] = []
    result = lf.lean(teacher, data, speedup=50, train=False, **{**QUICK, "quiet": False, "said": lines.append})
    assert (result.plan, result.speedup, result.met) == (Plan((32, 32)), 1.0, False)
    assert any("is 1.00 times as fast" in line for line in lines)


def test_a_drop_that_nothing_meets_gives_the_model_itself(teacher, data, monkeypatch):
    monkeypatch.setattr(
        "leanformer.search.judge.Judge._compared",
        lambda judge, model, size, first, last: ([1.0] * (last - first), [0.0] * (last - first)),
    )
    result = lf.lean(teacher, data[0], max_drop=0.1, train=False, **QUICK)
    assert result.plan == Plan((32, 32))


def test_the_plan_that_is_best_after_a_trial_is_taken(teacher):
    class Explored:
        class judge:
            device = torch.device("cpu")

            @staticmethod
            def verdict(model, size):
                return Verdict([model] * 4, [1, 0, 1, 0])

        @staticmethod
        def family(plan):
            return tuple(name for name, _ in plan.shares)

    class Trains:
        @staticmethod
        def trial_updates(plans, student, entries):
            return 10

        @staticmethod
        def tried(plan, updates):
            class After(float):
                def to(self, device):
                    return float(self)

            return After(0.1 if plan.of_method("tome") else 0.5)

    plans = [Plan.of((32, 32), {"evit": {1: 0.3}}), Plan.of((32, 32), {"tome": {1: 0.3}})]
    met = [told(Candidate(plan, 1.0, Verdict([loss] * 4, [1, 1, 1, 0]))) for plan, loss in zip(plans, (0.2, 0.3))]
    entries: dict = {}
    chooser = Chooser(
        teacher, 1.0, Explored, None, Trains, None, Progress(quiet=True), Memory({}, lambda: None), trials=True
    )  # type: ignore[arg-type]  # fmt: skip
    assert chooser._tried(met, entries)["plan"] == plans[1].to_json()
    assert [trial["loss"] for trial in entries["trials"]] == [0.5, 0.1]
    chooser.trials = False
    assert chooser._tried(met, {})["plan"] == plans[0].to_json()


@pytest.mark.exhaustive
def test_the_export_that_was_asked_for_lies_beside_the_checkpoint(done, teacher, data, tmp_path):
    pytest.importorskip("onnxruntime")
    result = lf.lean(teacher, data, speedup=1.3, train=False, output=tmp_path, export="onnx", **QUICK)
    assert [file.name for file in result.files] == ["lean.safetensors", "lean.onnx"]
    assert result.record["export"]["error"] < 1e-3
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(lf.export.open_file(result.files[1])(images), result.model(images), atol=1e-3, rtol=1e-3)


def test_an_export_that_is_missing_or_of_another_format_is_made_again(teacher, data, tmp_path, monkeypatch):
    written: list[str] = []

    def exported(finish, model, file):
        written.append(finish.options.export)
        file.with_suffix(f".{written[-1]}").touch()
        return {"file": file.with_suffix(f".{written[-1]}").name, "format": written[-1]}

    monkeypatch.setattr(Finish, "exported", exported)
    monkeypatch.setattr("leanformer.search.make_lean.check_export", lambda *_: None)
    for format in ("onnx", "onnx", "openvino"):
        result = lf.lean(teacher, data, speedup=1.3, train=False, output=tmp_path, export=format, **QUICK)
        assert result.files[1].suffix == f".{format}"
    assert written == ["onnx", "openvino"]
    result.files[1].unlink()
    lf.lean(teacher, data, speedup=1.3, train=False, output=tmp_path, export="openvino", **QUICK)
    assert written == ["onnx", "openvino", "openvino"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_costs_are_timed_in_the_runtime_that_was_asked_for(teacher, data, runtime):
    pytest.importorskip({"onnx": "onnxruntime"}.get(runtime, runtime))
    result = lf.lean(teacher, data, speedup=1.1, train=False, **{**QUICK, "runtime": runtime})
    assert result.record["about"]["place"][-1] == runtime
    assert result.record["final"]["seconds"] > 0


def damaged(model):
    model = lf.apply(model)
    model.head.weight.data[0, 0] = float("nan")
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": torch.zeros(0, 3, 32, 32, dtype=torch.uint8)}, "holds no images"),
        ({"data": torch.zeros(63, 3, 32, 32, dtype=torch.uint8)}, "holds 63 images; a plan needs 64"),
        ({"data": (torch.zeros(80, 3, 32, 32, dtype=torch.uint8), torch.ones(80))}, "all images .* of one class"),
        ({"data": (torch.zeros(80, 3, 32, 32, dtype=torch.uint8), torch.arange(80) % 7)}, "classes"),
        ({"model": lf.fuse}, "fused already"),
        ({"model": lambda model: lf.apply(model, lf.EViT())}, "evit is on this model already"),
        ({"model": damaged}, "not finite"),
        ({"model": lambda model: torch.nn.Linear(2, 2)}, "lf.adopt first"),
        ({"speedup": 0.9}, "1 or more"),
        ({"speedup": float("inf")}, "1 or more"),
        ({"max_drop": 1.0}, "give one target"),
        ({"speedup": None, "latency": "1ms"}, "macs counts and times nothing"),
        ({"curve": (2.0, 3.0)}, "give one target"),
        ({"shared": True}, "with a curve"),
        ({"shared": True, "curve": (1.5, 2.0), "speedup": None, "methods": ("repa",)}, "no weights can be shared"),
        ({"shared": True, "curve": (1.5, 2.0), "speedup": None, "methods": ("sit",)}, "no weights can be shared"),
        ({"epochs": 1, "minutes": 1.0}, "give one of them"),
        ({"epochs": 1, "recipe": lf.recipes.finetune(epochs=2)}, "epochs and the recipe both say how long"),
        ({"model": lambda model: lf.apply(model).double()}, "torch.float64.*give model.float"),
        ({"model": lambda model: lf.with_head(model, 1), "data": WITHOUT_LABELS}, "the model has one class"),
        ({"minutes": 0}, "above 0, or train=False"),
        ({"minutes": float("nan")}, "above 0, or train=False"),
        ({"epochs": 0}, "above 0, or train=False"),
        ({"epochs": 1, "train": False}, "give one of them"),
        ({"choosing": 0}, "1 or more"),
        ({"evaluations": 0}, "1 or more"),
        ({"batch": 0}, "1 or more"),
        ({"dtype": "int8"}, "unknown dtype"),
        ({"device": "cuda:77"}, "there is no device"),
        ({"device": "zz"}, "there is no device"),
        ({"runtime": "zz"}, "unknown runtime 'zz'; known: torch, eager, macs, onnxruntime, openvino"),
        ({"runtime": "openvino", "dtype": "bfloat16"}, "float32"),
        ({"export": "zz", "output": "there"}, "unknown format 'zz'"),
        ({"export": "torch"}, "give an output folder"),
        ({"methods": ("zz",)}, "unknown method"),
        ({"methods": ("slab",)}, "slab offers nothing to search"),
        ({"methods": ()}, "nothing to change in this model"),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, dict) else given,
)
def test_what_cannot_be_done_is_refused_in_one_line_before_any_work(
    teacher, data, tmp_path, monkeypatch, change, message
):
    monkeypatch.setattr("leanformer.search.job.Job.run", lambda job: pytest.fail("work began"))
    given = {"speedup": 2.0, **QUICK, "output": tmp_path / "out", **change}
    if change == {"export": "torch"}:
        given["output"] = None
    model, images = given.pop("model", lambda model: model)(teacher), given.pop("data", data)
    with pytest.raises(ValueError, match=message) as refused:
        lf.lean(model, images, **given)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("option", "name"), [("runtime", "onnxruntime"), ("export", "onnx")])
def test_a_runtime_that_is_not_installed_is_one_line(teacher, data, tmp_path, monkeypatch, option, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(ValueError, match=r"needs onnx.*pip install 'leanformer\[onnx\]'"):
        lf.lean(teacher, data, speedup=2.0, output=tmp_path / "out", **{**QUICK, option: name})


def test_a_folder_of_one_class_is_refused(teacher, tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for index in range(70):
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "cat" / f"{index}.png")
    with pytest.raises(ValueError, match="of one class"):
        lf.lean(teacher, tmp_path / "photos", speedup=2.0, **QUICK)


def test_the_command_line_refuses_before_it_opens_a_model(capsys, tmp_path):
    from leanformer.cli import main

    for given, message in (
        (["--speedup", "2", "--minutes", "0"], "--minutes must be a finite number above 0"),
        (["--speedup", "0.5"], "1 or more"),
        (["--curve", "1.5", "nan"], "1 or more"),
        ([], "give one target"),
    ):
        assert main(["lean", "no_such_model", "--data", "nowhere", "--output", str(tmp_path / "out"), *given]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
