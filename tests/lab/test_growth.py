"""A grown ViT computes what the small one does, its halves are not twins, and it can be trained and saved."""

import pytest
import torch
from helpers import randomise

import leanformer as lf
from lab.studies.growth import grow
from lab.studies.vit_small import STUDENTS, vit_small
from lab.studies.vit_tiny import vit_tiny
from leanformer.core import input_of

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}


@pytest.mark.parametrize("options", [{}, {"class_token": False, "global_pool": "avg"}, {"init_values": 0.1}])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_grown_model_gives_the_same_logits(options, noise):
    small = randomise(lf.create("vit", **TINY, **options)).double().eval()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    wide = grow(small, noise=noise)
    assert wide.embed_dim == 64
    assert wide.blocks[0].mix.fn.num_heads == 4
    torch.testing.assert_close(wide(images), small(images), atol=1e-9, rtol=0)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_halves_learn_different_things_with_noise_alone(noise):
    wide = grow(randomise(lf.create("vit", **TINY)), noise=noise)
    wide(torch.randn(8, 3, 32, 32)).logsumexp(1).sum().backward()
    first, second = wide.blocks[0].ffn.fn.fc1.weight.grad.chunk(2)
    assert torch.allclose(first, second, rtol=1e-3, atol=1e-5) == (noise == 0.0)


def test_a_model_with_methods_does_not_grow():
    with pytest.raises(ValueError, match="only a ViT without methods can grow"):
        grow(lf.apply(lf.create("vit", **TINY), lf.EViT()))


def test_the_grown_study_repeats_rows_of_the_small_one_and_its_teacher_can_be_saved(tmp_path):
    sizes = {"depth": 12, "embed_dim": 24, "num_heads": 2, "img_size": 64}
    study = vit_small(None, **sizes)
    teacher = study.teacher(3)
    lf.save(teacher, tmp_path / "teacher.safetensors")
    again = lf.load(tmp_path / "teacher.safetensors")
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(again(images), teacher.eval()(images))
    assert set(STUDENTS) <= {s.name for s in study.students} & {s.name for s in vit_tiny(None, **sizes).students}
    for student in study.students:
        lean = student.make(again, 12)
        assert lean(torch.randn(2, *input_of(lean)["input_size"])).shape == (2, 3)


def test_the_grown_teacher_starts_with_what_a_trained_small_one_knows(tmp_path):
    sizes = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": 32}
    trained = randomise(vit_tiny(None, **sizes).teacher(3)).eval()
    lf.save(trained, tmp_path / "trained.safetensors")
    study = vit_small(tmp_path / "trained.safetensors")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(study.teacher(3).eval()(images), trained(images), atol=1e-4, rtol=0)
    assert study.teacher(5)(images).shape == (2, 5)  # other classes, another head


def test_the_trained_vit_grows_to_the_size_of_vit_small(shared):
    small = lf.create("vit_tiny_patch16_224", shared / "data" / "vit_tiny_patch16_224_in1k_fp16.safetensors").eval()
    wide = grow(small, "vit_small_patch16_224")
    assert sum(p.numel() for p in wide.parameters()) == sum(
        p.numel() for p in lf.create("vit_small_patch16_224").parameters()
    )
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(wide(images), small(images), atol=2e-3, rtol=0)
