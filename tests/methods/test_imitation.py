"""The imitation losses against plain loops, their memory, and the objective that puts them together."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import randomise

import leanformer as lf
from leanformer.core import Step, View, taps
from leanformer.layers.losses import distil, feature_loss, relation_loss
from leanformer.methods.riformer.method import spread
from leanformer.train import fit, plain


def plain_relation(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Eq. 7, entry by entry."""
    B, P, _ = student.shape
    total = student.new_zeros(())
    for b in range(B):
        for i in range(P):
            for j in range(P):
                ours = student[b, i] @ student[b, j] / (student[b, i].norm() * student[b, j].norm())
                theirs = teacher[b, i] @ teacher[b, j] / (teacher[b, i].norm() * teacher[b, j].norm())
                total = total + (ours - theirs) ** 2
    return total / (B * P**2)


def plain_feature(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Eq. 6 and 8, entry by entry."""
    pairs = zip(student.flatten().unbind(), teacher.flatten().unbind())
    return torch.stack([(ours - theirs) ** 2 for ours, theirs in pairs]).sum() / student.numel()


def tiny(**arguments):
    return lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=6, num_heads=2, num_classes=5, **arguments)


def step_of(objective, student, teachers, images, epoch=0.0, inference=torch.inference_mode):
    """One step as the engine makes it: every model once, teachers without gradients."""
    objective.meet(teachers)
    views = {}
    for name, teacher in teachers.items():
        with inference(), taps(teacher, objective.teacher_taps().get(name, ())) as seen:
            views[name] = View(teacher(images), dict(seen))
    with taps(student, objective.student_taps()) as seen:
        view = View(student(images), dict(seen))
    return Step(images, torch.arange(len(images)) % 5, view, views, epoch)


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 3, 7), (1, 4, 4)], ids=["more positions", "more channels", "as many"])
def test_relation_loss_and_its_gradient_are_those_of_the_plain_loops(shape):
    teacher = torch.randn(shape)
    student, plain = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    ours, theirs = relation_loss(student, teacher), plain_relation(plain, teacher)
    ours.backward(), theirs.backward()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(student.grad, plain.grad)


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 3, 4, 4)])
def test_feature_loss_and_its_gradient_are_those_of_the_plain_loops(shape):
    teacher = torch.randn(shape)
    student, plain = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    ours, theirs = feature_loss(student, teacher), plain_feature(plain, teacher)
    ours.backward(), theirs.backward()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(student.grad, plain.grad)


def test_relation_loss_keeps_its_digits_when_the_student_is_close():
    teacher = torch.randn(1, 200, 16)
    student = teacher + 1e-4 * torch.randn(1, 200, 16)
    a, b = F.normalize(student.double(), dim=-1), F.normalize(teacher.double(), dim=-1)
    exact = (a @ a.mT - b @ b.mT).square().mean()
    assert exact < 1e-7
    torch.testing.assert_close(relation_loss(student, teacher).double(), exact, rtol=1e-2, atol=0)


def test_relation_loss_of_large_maps_never_holds_a_relation_matrix():
    B, P, C = 2, 56 * 56, 64
    student, teacher = torch.randn(B, P, C, requires_grad=True), torch.randn(B, P, C)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        loss = relation_loss(student, teacher)
    loss.backward()
    assert student.grad.isfinite().all()
    assert max(saved) <= B * P * C < B * P * P // 40


def test_distillation_at_a_temperature_is_the_divergence_of_softened_probabilities():
    student, teacher = torch.randn(3, 5), torch.randn(3, 5)
    p, q = (teacher / 2).softmax(1), (student / 2).softmax(1)
    torch.testing.assert_close(distil(student, teacher, "soft", 2.0), 4 * (p * (p / q).log()).sum(1).mean())
    torch.testing.assert_close(distil(student, teacher, "hard"), F.cross_entropy(student, teacher.argmax(1)))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 6, 12, 20])
def test_imitating_blocks_are_as_many_as_asked_and_in_order(n):
    stages = [0, 0, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3]
    chosen = spread(stages, n)
    assert len(set(chosen)) == len(chosen) == min(n, 12)
    assert chosen == sorted(chosen)
    if n >= 4:
        assert {stages[i] for i in chosen} == {0, 1, 2, 3}


def test_a_teacher_that_adds_nothing_does_not_blow_the_relative_loss_up():
    assert feature_loss(torch.ones(2, 5, 8), torch.zeros(2, 5, 8), relative=True) <= 1000


@pytest.mark.parametrize("relative", [False, True])
def test_objective_terms_are_the_losses_times_their_weights(relative):
    teacher = randomise(tiny())
    weights = {"block_weight": 2.0, "output_weight": 3.0, "relation_weight": 5.0}
    method = lf.RIFormer(blocks=(0, 1), relative=relative, **weights)
    student = randomise(lf.apply(teacher, method), seed=1)
    objective = method.objective(student, teacher)
    step = step_of(objective, student, {"teacher": teacher}, torch.randn(2, 3, 32, 32))
    terms, ours, theirs = objective(step), step.student.taps, step.teachers["teacher"].taps
    assert set(ours) == {"blocks.0", "blocks.1", "blocks.0.mix.fn", "blocks.1.mix.fn"}

    def mean(loss, *paths):
        return sum(loss(ours[p], theirs[p].clone()) for p in paths) / len(paths)

    def feature(ours, theirs):
        return feature_loss(ours, theirs) / (theirs.square().mean() if relative else 1)

    soft = distil(step.student.output, step.teachers["teacher"].output.clone())
    torch.testing.assert_close(terms["logits"], soft)
    torch.testing.assert_close(terms["block"], 2 * mean(feature, "blocks.0", "blocks.1"))
    torch.testing.assert_close(terms["output"], 3 * mean(feature, "blocks.0.mix.fn", "blocks.1.mix.fn"))
    torch.testing.assert_close(terms["relation"], 5 * mean(relation_loss, "blocks.0", "blocks.1"))
    sum(terms.values()).backward()
    assert student.blocks[0].mix.fn.weight.grad.abs().sum() > 0


def test_imitation_terms_end_with_their_epochs():
    teacher = tiny()
    method = lf.RIFormer(blocks=(0,), feature_epochs=8, relation_epochs=2)
    student = lf.apply(teacher, method)
    objective, images = method.objective(student, teacher), torch.randn(2, 3, 32, 32)
    at = {e: set(objective(step_of(objective, student, {"teacher": teacher}, images, e))) for e in (0.0, 2.0, 8.0)}
    everything = {"logits", "block", "output", "relation"}
    assert at == {0.0: everything, 2.0: everything - {"relation"}, 8.0: {"logits"}}


def test_logit_teacher_and_imitation_teacher_may_be_two_models():
    imitated, logits = randomise(tiny()), randomise(lf.create("mixer", img_size=32, num_blocks=1, num_classes=5))
    method = lf.RIFormer(blocks=(0, 1))
    student = lf.apply(imitated, method)
    objective, images = method.objective(student, logits), torch.randn(2, 3, 32, 32)
    both = objective(step_of(objective, student, {"teacher": logits, "imitation": imitated}, images))
    alone = method.objective(student, imitated)
    same = alone(step_of(alone, student, {"teacher": imitated}, images))
    assert both["block"] == same["block"]
    assert both["logits"] != same["logits"]
    with pytest.raises(ValueError, match="as 'imitation' beside"):
        objective(step_of(objective, student, {"teacher": logits}, images))
    off = method.replace(layers=0).objective(student, logits)
    assert set(off(step_of(off, student, {"teacher": logits}, images))) == {"logits"}


def test_without_a_logit_teacher_the_labels_count():
    teacher = tiny()
    method = lf.RIFormer(blocks=(0,))
    student = lf.apply(teacher, method)
    objective, images = method.objective(student, None), torch.randn(4, 3, 32, 32)
    for teachers, terms in (({}, {"logits"}), ({"imitation": teacher}, {"logits", "block", "output", "relation"})):
        step = step_of(objective, student, teachers, images)
        found = objective(step)
        assert set(found) == terms
        torch.testing.assert_close(found["logits"], F.cross_entropy(step.student.output, step.targets))


@pytest.mark.parametrize(("kind", "share"), [("soft", 0.0), ("soft", 0.5), ("hard", 0.0), ("hard", 0.5)])
def test_logit_loss_has_the_four_variants_of_the_tables(kind, share):
    teacher = randomise(tiny())
    method = lf.RIFormer(blocks=(0,), distillation=kind, label_weight=share, layers=0)
    student = randomise(lf.apply(teacher, method), seed=1)
    objective = method.objective(student, teacher)
    step = step_of(objective, student, {"teacher": teacher}, torch.randn(4, 3, 32, 32))
    labels = F.cross_entropy(step.student.output, step.targets)
    distilled = distil(step.student.output, step.teachers["teacher"].output.clone(), kind)
    torch.testing.assert_close(objective(step)["logits"], share * labels + (1 - share) * distilled)


def test_identity_variant_imitates_features_and_relations_only():
    teacher = tiny()
    method = lf.RIFormer(blocks=(0,), identity=True)
    student = lf.apply(teacher, method)
    objective = method.objective(student, teacher)
    terms = objective(step_of(objective, student, {"teacher": teacher}, torch.randn(2, 3, 32, 32)))
    assert set(terms) == {"logits", "block", "relation"}


def test_imitating_layers_by_index_must_exist():
    model = lf.apply(tiny(), lf.RIFormer(blocks=(0,)))
    assert set(lf.RIFormer(layers=(0, 5)).objective(model, None).layouts) == {"blocks.0", "blocks.5"}
    with pytest.raises(ValueError, match="layer 6 does not exist"):
        lf.RIFormer(layers=(6,)).objective(model, None)


def test_blocks_behind_dropped_tokens_are_refused_before_training():
    teacher, evit, late = randomise(tiny()), lf.EViT(at=(3,)), lf.RIFormer(blocks=(4, 5))
    student = lf.apply(teacher, late, evit)
    with pytest.raises(ValueError, match=r"blocks\.4 is to imitate .* but blocks\.3\.mix drops.*layers=0"):
        late.objective(student, teacher)
    assert late.objective(student, None) is not None  # without a teacher nothing is imitated
    off = late.replace(layers=0).objective(student, teacher)
    images = torch.randn(2, 3, 32, 32)
    assert set(off(step_of(off, student, {"teacher": teacher}, images))) == {"logits"}
    early = lf.RIFormer(blocks=(0, 1))
    student = lf.apply(teacher, early, evit)
    objective = early.objective(student, teacher)
    assert "block" in objective(step_of(objective, student, {"teacher": teacher}, images))


def test_slimmed_tokens_are_imitated_where_the_teacher_slims_alike():
    plain = randomise(tiny())
    teacher, method = lf.apply(plain, lf.SiT(at=(2,))), lf.RIFormer(blocks=(4, 5))
    student = lf.apply(teacher, method)
    objective = method.objective(student, teacher)
    assert "block" in objective(step_of(objective, student, {"teacher": teacher}, torch.randn(2, 3, 32, 32)))
    with pytest.raises(ValueError, match=r"blocks\.2\.pre drops, merges or mixes"):
        method.objective(student, plain)


def test_a_perfect_student_imitates_at_no_loss():
    teacher = tiny()
    for block in teacher.blocks:
        torch.nn.init.zeros_(block.mix.fn.proj.weight)
    method = lf.RIFormer()
    student = lf.apply(teacher, method)
    objective = method.objective(student, teacher)
    terms = objective(step_of(objective, student, {"teacher": teacher}, torch.randn(2, 3, 32, 32)))
    assert all(math.isclose(term.item(), 0, abs_tol=1e-6) for term in terms.values())


def test_the_engine_trains_with_two_teachers_or_with_one():
    imitated, logits = tiny(), lf.create("mixer", img_size=32, embed_dim=16, num_blocks=1, num_classes=5)
    data = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8), torch.arange(8) % 5
    for teachers in ({"teacher": logits, "imitation": imitated}, {"imitation": imitated}, imitated):
        student = lf.apply(imitated, lf.RIFormer(blocks=(0, 1)))
        before = student.blocks[0].mix.fn.weight.clone()
        fit(student, recipe=plain(epochs=1, batch_size=4), data=data, teacher=teachers, device="cpu", quiet=True)
        assert not torch.equal(before, student.blocks[0].mix.fn.weight)
    with pytest.raises(ValueError, match="needs a teacher called 'imitation'"):
        fit(student, recipe=plain(epochs=1, batch_size=4), data=data, teacher=logits, device="cpu", quiet=True)
