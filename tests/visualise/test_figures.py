"""Figures: each is drawn for the models it is meant for, says in words what it shows, and places nothing wrongly."""

import numpy as np
import pytest
import timm
import torch
from families import BACKBONES, backbone, images
from helpers import randomise
from matplotlib.text import Text
from PIL import Image
from scenes import small_segmenter
from sklearn.datasets import load_sample_image

import leanformer as lf
from leanformer import visualise
from leanformer.cli import main
from leanformer.core import FUSED, kept_patches, taps, traced
from leanformer.layers.attention import attend
from leanformer.visualise.cam import grad_cam_maps
from leanformer.visualise.class_token import attention_maps
from leanformer.visualise.fields import effective_field, square
from leanformer.visualise.images import as_batch, pictures
from leanformer.visualise.places import watching
from leanformer.visualise.tokens import _outlines, token_of_patch

EVIT, SIT = lf.EViT(at=(1, 2)), lf.SiT(at=(1, 2))
REDUCED = {"evit": EVIT, "evit_unfused_tokens": EVIT.replace(fuse_tokens=False), "sit": SIT,
           "pool": lf.SiT(at=(1,), operator="pool", keep_ratio=0.25)}  # fmt: skip


def photo(name: str = "china.jpg") -> Image.Image:
    return Image.fromarray(load_sample_image(name))


def lean(*methods, family: str = "vit"):
    return randomise(lf.apply(backbone(family), *methods)).eval()


def test_a_figure_is_written_as_png_and_as_svg_with_its_words(tmp_path):
    figure = visualise.kept_tokens(lean(EVIT), [photo(), photo("flower.jpg")])
    for suffix in ("png", "svg"):
        assert figure.save(tmp_path / "deep" / f"kept.{suffix}").stat().st_size > 1000
    assert "after block 2" in (tmp_path / "deep" / "kept.svg").read_text()
    assert Image.open(tmp_path / "deep" / "kept.png").text["Description"] == figure.summary
    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        figure.save(tmp_path / "kept.pdf")


def test_kept_patches_are_drawn_where_they_are_and_fused_tokens_nowhere():
    model = lean(EVIT)
    for rows, patches in zip(traced(model, images(model)), kept_patches(model, images(model)), strict=True):
        for owner, kept in zip(token_of_patch(rows), patches):
            real = kept[kept != FUSED]
            assert (owner != FUSED).sum() == len(real.unique())
            assert kept[owner[real]].equal(real)


def test_merged_patches_are_drawn_as_one_token_in_its_outline():
    model = lean(lf.ToMe(keep_rate=0.8, at=(2,)))
    figure = visualise.kept_tokens(model, photo())
    rows = traced(model, as_batch(model, photo()))[-1]  # the blocks behind only hand sizes on
    owner = token_of_patch(rows)[0]
    assert len(owner.unique()) == 13
    assert (owner != FUSED).all()
    (told,) = [line for line in figure.summary.splitlines() if line.startswith("after")]
    assert told.startswith("after block 3: 13 tokens for 16 patches (81%)")
    assert f"the largest for {owner.bincount().max()}" in told
    axes = figure.plot.axes[1]
    assert axes.get_title() == "block 3: 13/16"
    assert len(axes.collections[0].get_segments()) > 0
    drawn = axes.images[0].get_array().reshape(4, 8, 4, 8, 3).swapaxes(1, 2).reshape(16, 64, 3)  # patches of 8 x 8
    for token in owner.unique():
        pixels = drawn[(owner == token).numpy()].reshape(-1, 3)
        assert (len(pixels) > 64) == bool((pixels.max(0) - pixels.min(0) < 1e-6).all())


def test_outlines_are_between_different_tokens_but_not_between_patches_left_alone():
    owner, unlike = np.array([[0, 0], [1, 2]]), np.array([[True, True], [False, False]])
    assert _outlines(owner, unlike, 8, 8) == [[(-0.5, 7.5), (7.5, 7.5)], [(7.5, 7.5), (15.5, 7.5)]]


def test_files_pictures_and_tensors_become_the_same_batch(tmp_path):
    model, picture = backbone("vit"), photo()
    picture.save(tmp_path / "china.png")
    bytes_ = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    batches = [as_batch(model, each) for each in (picture, tmp_path / "china.png", bytes_)]
    assert all(torch.equal(batches[0], each) for each in batches)
    assert torch.equal(as_batch(model, batches[0][0]), batches[0])
    shown = pictures(model, batches[0])
    assert shown.shape == (1, 32, 32, 3)
    assert 0 <= shown.min() < shown.max() <= 1
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ValueError, match="cannot read the image"):
        as_batch(model, tmp_path / "text.png")


def turned(path) -> Image.Image:
    """Write a picture as a camera on its side does, and give it upright."""
    upright, exif = photo().crop((0, 0, 90, 60)), Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    return upright


def test_pictures_are_turned_as_their_camera_says(tmp_path):
    model, upright = backbone("vit"), turned(tmp_path / "turned.png")
    for image in (tmp_path / "turned.png", Image.open(tmp_path / "turned.png")):
        assert torch.equal(as_batch(model, image), as_batch(model, upright))


def test_what_a_segmenter_finds_is_shown_on_the_upright_picture(tmp_path):
    upright = turned(tmp_path / "turned.png")
    figure = visualise.predictions(small_segmenter(), [tmp_path / "turned.png"], "label-map")
    for axis in figure.plot.axes:
        height, width = axis.images[0].get_array().shape[:2]
        assert height * upright.width == width * upright.height


def test_a_file_that_is_no_whole_picture_or_too_large_is_named(tmp_path, monkeypatch):
    path = tmp_path / "cut.jpg"
    photo().save(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=f"cannot read the image {path}: .*truncated"):
        as_batch(backbone("vit"), path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=f"cannot read the image {path}: .*exceeds limit"):
        as_batch(backbone("vit"), path)


@pytest.mark.parametrize("family", BACKBONES)
def test_grad_cam_maps_every_family(family):
    model = backbone(family)
    maps, classes, _ = grad_cam_maps(model, images(model))
    assert maps.shape[0] == 2
    assert maps.isfinite().all()
    assert maps.min() >= 0
    assert maps.max() == 1
    assert classes.shape == (2,)


def test_grad_cam_is_the_same_after_fusing():
    model = lean(lf.RePa(), EVIT)
    batch = images(model)
    before, after = grad_cam_maps(model, batch)[0], grad_cam_maps(lf.fuse(model), batch)[0]
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-3)


def test_grad_cam_finds_the_patch_that_decides():
    """A model whose logit is the brightness of what its patches show puts the evidence where the light is."""
    model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=2,
                      class_token=False, global_pool="avg", final_norm=False, fc_norm=False).eval()  # fmt: skip
    for parameter in model.parameters():
        parameter.data.zero_()
    model.patch_embed.proj.weight.data[0] = 1 / 192
    model.head.weight.data[1, 0] = 1
    batch = torch.zeros(1, 3, 32, 32)
    batch[0, :, 8:16, 16:24] = 1
    maps, classes, _ = grad_cam_maps(model, batch)
    assert classes.item() == 1
    assert maps[0].argmax() == 1 * 4 + 2
    assert maps.sum() == 1


@pytest.mark.parametrize("method", REDUCED)
def test_maps_of_models_with_fewer_tokens_lie_on_the_plane(method):
    model = lean(REDUCED[method])
    maps, _, reduced = grad_cam_maps(model, images(model))
    assert maps.shape == (2, 4, 4)
    assert reduced
    assert effective_field(model, images(model, batch=4)).shape == (32, 32)


def test_evidence_lies_on_kept_patches_only():
    model = lean(EVIT)
    batch = images(model)
    maps, _, _ = grad_cam_maps(model, batch)
    assert (maps.flatten(1)[token_of_patch(traced(model, batch)[-1]) == FUSED] == 0).all()


def test_places_follow_the_patches_through_dropping_and_slimming():
    model = lean(EVIT)
    batch = images(model)
    with torch.no_grad(), watching(model) as watch:
        model(batch)
    patches = kept_patches(model, batch)[-1]
    places = watch.features[-1].places_after
    expected = torch.where(patches == FUSED, FUSED, places.argmax(2))
    assert torch.equal(patches, expected)
    assert (places[patches == FUSED] == 0).all()


def test_the_receptive_field_of_a_linear_patch_is_that_patch():
    model = lean(lf.RIFormer(blocks=(0, 1, 2)), family="vit_qk_norm_avg")
    model.blocks[3].mix.fn.proj.weight.data.zero_()
    field = effective_field(model, images(model))
    inside = field[16:24, 16:24].clone()
    field[16:24, 16:24] = 0
    assert inside.max() == 1
    assert not field.any()


def test_the_smallest_square_that_holds_a_share():
    assert square(torch.ones(10, 10), 0.16) == 4
    assert square(torch.ones(10, 10), 1.0) == 10


def test_a_model_beside_itself_overlaps_wholly_and_beside_another_less():
    model, other = backbone("vit"), randomise(lf.create("vit", **BACKBONES["vit"][1]), seed=5, scale=0.4).eval()
    same = visualise.feature_distributions(model, model, photo())
    assert same.summary.count("overlap 100%") == 4
    assert "overlap 100%" not in visualise.feature_distributions(model, other, photo()).summary.splitlines()[4]
    with pytest.raises(ValueError, match="cannot be paired"):
        visualise.feature_distributions(model, backbone("gfnet"), photo())


def test_models_without_what_a_figure_shows_are_refused():
    with pytest.raises(ValueError, match="drops patches"):
        visualise.kept_tokens(backbone("vit"), photo())
    with pytest.raises(ValueError, match="slimming"):
        visualise.slimming(backbone("vit"), photo())
    with pytest.raises(ValueError, match="classes 0 to 4"):
        visualise.grad_cam(backbone("vit"), photo(), target=5)


def test_the_trade_off_marks_what_nothing_beats():
    rows = [{"model": name, "throughput": speed, "macs": macs} for name, speed, macs in
            (("slow", 10, 4e9), ("fast", 20, 2e9), ("lavish", 15, 3e9))]  # fmt: skip
    told = visualise.trade_off(rows).summary.splitlines()
    assert [line.endswith("*") for line in told[1:]] == [False, True, False]
    with pytest.raises(ValueError, match="no row has both"):
        visualise.trade_off([{"model": "a"}])


def words_box(text):
    """Where the words of a label stand, without the line to its point."""
    text.get_window_extent()  # finds the place
    return Text.get_window_extent(text)


def test_names_in_the_trade_off_cover_neither_points_nor_each_other():
    models = {"": (4.8, 4.6e9), " evit:keep_rate=0.7": (7.0, 3.0e9), " repa": (7.4, 2.9e9), " repa+evit": (10.2, 2e9)}
    rows = [
        {"model": f"deit_small_patch16_224{more}", "batch": batch, "throughput": speed * faster, "macs": macs}
        for batch, faster in ((1, 1.0), (8, 1.1))
        for more, (speed, macs) in models.items()
    ]
    plot = visualise.trade_off(rows).plot
    axis = plot.axes[0]
    boxes = [words_box(text) for text in axis.texts]
    assert len(boxes) == len(rows)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    dots = axis.transData.transform([(row["throughput"], row["macs"] / 1e9) for row in rows])
    assert not any(box.contains(*dot) for box in boxes for dot in dots)


@pytest.mark.parametrize("close", [1.0, 0.02], ids=["apart", "on one spot"])
def test_long_names_stay_within_the_axes_and_off_each_other_however_close_the_points_lie(close):
    numbers = torch.rand(12, 2, generator=torch.Generator().manual_seed(3)) * close + 1
    rows = [
        {"model": f"vit_base_patch16_224.augreg_in21k_ft_in1k evit:keep_rate={i} repa:idle_ratio=0.5", "throughput": a,
         "top1": b} for i, (a, b) in enumerate(numbers.tolist())
    ]  # fmt: skip
    axis = visualise.trade_off(rows).plot.axes[0]
    boxes = [words_box(text) for text in axis.texts]
    assert len(boxes) >= 4, "so few names fit"
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    frame = axis.get_window_extent()
    assert all(frame.x0 - 1 <= box.x0 and box.x1 <= frame.x1 + 1 for box in boxes)
    assert all(frame.y0 - 1 <= box.y0 and box.y1 <= frame.y1 + 1 for box in boxes)


def test_a_quantity_that_was_logged_once_or_never_as_a_number_is_no_curve():
    lines = [{"kind": "epoch", "epoch": 1, "update": 5, "val_top1": 10.0}]
    lines += [{"kind": "step", "update": i, "loss": float("nan"), "learning_rate": 0.1} for i in range(3)]
    assert [figure.summary.split(" over")[0] for figure in visualise.curves(lines)] == ["learning rate"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("kept", ["--apply", "evit"]), ("slimming", ["--apply", "sit"]), ("grad-cam", ["--apply", "repa", "--fused"]),
     ("receptive-field", ["--apply", "sit"]), ("features", ["--apply", "sit"])],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*batch norms to be folded")
def test_show_writes_the_figure_and_tells_it(kind, options, tmp_path, capsys):
    photo().save(tmp_path / "china.png")
    size = [f"--set={a}" for a in ("img_size=32", "patch_size=8", "embed_dim=32", "depth=4", "num_heads=2")]
    arguments = ["show", kind, "vit", *size, *options, "--image", str(tmp_path / "china.png")]
    assert main([*arguments, "--output", str(tmp_path / "figure.png")]) == 0
    assert (tmp_path / "figure.png").is_file()
    assert len(capsys.readouterr().out.splitlines()) >= 2


@pytest.mark.parametrize("kind", ["receptive-field", "features"])
def test_two_models_of_one_architecture_are_both_shown_under_the_names_of_their_files(kind, tmp_path, capsys):
    photo().save(tmp_path / "china.png")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lf.save(backbone("vit"), tmp_path / name / "lean.safetensors")
    files = [str(tmp_path / name / "lean.safetensors") for name in ("a", "b")]
    command = ["show", kind, files[0], "--versus", files[1], "--image", str(tmp_path / "china.png")]
    assert main([*command, "--output", str(tmp_path / "figure.png")]) == 0
    told = capsys.readouterr().out
    assert "a/lean.safetensors" in told
    assert "b/lean.safetensors" in told


def test_show_says_what_is_missing(tmp_path, capsys):
    assert main(["show", "kept", "vit"]) == 2
    assert "--image" in capsys.readouterr().err
    assert main(["show", "trade-off", str(tmp_path / "none.json")]) == 2


def test_grad_cam_of_a_cnn_is_the_textbooks_at_its_last_feature_level():
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=5).eval()
    images = torch.randn(2, 3, 64, 64)
    maps, classes, reduced = grad_cam_maps(model, images, target=3)
    features = model.forward_features(images).detach().requires_grad_()  # (B, C, 2, 2)
    slope = torch.autograd.grad(model.forward_head(features)[:, 3].sum(), features)[0]
    for b in range(2):
        expected = sum(slope[b, c].mean() * features[b, c].detach() for c in range(features.shape[1])).relu()
        torch.testing.assert_close(maps[b], expected / expected.max().clamp_min(1e-12), atol=1e-4, rtol=1e-4)
    assert classes.tolist() == [3, 3]
    assert not reduced


def test_grad_cam_of_any_timm_model_is_drawn_from_the_command_line(tmp_path):
    Image.new("RGB", (70, 70), (200, 30, 60)).save(tmp_path / "red.png")
    command = ["show", "grad-cam", "resnet10t", "--image", str(tmp_path / "red.png")]
    assert main([*command, "--output", str(tmp_path / "cam.png")]) == 0
    assert (tmp_path / "cam.png").stat().st_size > 2000


@pytest.mark.parametrize("methods", [(), (lf.RePa(idle_ratio=0.5),), (lf.EViT(keep_rate=0.5, at=(1,)),), (lf.ToMe(),)])
def test_attention_of_the_class_token_lies_on_the_plane_and_adds_up_to_one_with_its_own(methods):
    model = lf.apply(lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2), *methods).double()
    batch = torch.randn(2, 3, 32, 32, dtype=torch.double)
    maps = attention_maps(model, batch)
    assert maps.shape == (2, 2, 4, 4)
    assert (maps >= 0).all()
    assert ((maps.sum((2, 3)) < 1) & (maps.sum((2, 3)) > 0.5)).all()


def test_attention_of_the_class_token_is_the_row_that_scores_read():
    model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2).eval()
    batch = torch.randn(2, 3, 32, 32)
    with taps(model, ["blocks.0.mix.norm"]) as seen:
        model(batch)
    _, row = attend(model.blocks[0].mix.fn, seen["blocks.0.mix.norm"])
    assert torch.allclose(attention_maps(model, batch).mean(1).flatten(1), row[:, 1:], atol=1e-6)


def test_attention_of_a_model_without_a_class_token_is_refused():
    with pytest.raises(ValueError, match="no class token"):
        visualise.attention(backbone("swin"), photo())
