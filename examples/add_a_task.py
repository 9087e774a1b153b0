"""Something else to learn than classes: an objective of your own in the one training loop.

    loss = 1 − cos(class token of the student, class token of the teacher)

An `Objective` says which inner outputs it reads (`student_taps`, `teacher_taps`: paths of modules), and turns one step
into named terms. The loop does the rest: batches, mixed precision, several processes, checkpoints, the log. What an
objective may say beyond that (several crops of an image, moving averages, another way to judge) stands in
`leanformer.core.Objective`; DINO in leanformer/tasks uses all of it.

    python examples/add_a_task.py

B batch, N tokens, C channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import leanformer as lf
from leanformer.core import Objective, Step

LAST = "norm"
"""The final norm of a ViT: its output holds the class token first."""


class CosineToTeacher(Objective):
    """The student's class token points where the teacher's does; no label is read."""

    def needs_labels(self) -> bool:
        return False

    def student_taps(self) -> frozenset[str]:
        return frozenset({LAST})

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        return {"teacher": frozenset({LAST})}

    def forward(self, step: Step) -> dict[str, Tensor]:
        ours = step.student.taps[LAST][:, 0]  # (B, C)
        theirs = step.teacher().taps[LAST][:, 0]  # (B, C)
        return {"cosine": (1 - F.cosine_similarity(ours, theirs)).mean()}


def main() -> None:
    """Train a lean student on noise without labels, and show the loss."""
    torch.manual_seed(0)
    teacher = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=10)
    student = lf.apply(teacher, lf.EViT.finetune(keep_rate=0.5))
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    recipe = lf.recipes.plain(epochs=2, batch_size=16, learning_rate=1e-3)
    result = lf.train.fit(
        student, recipe=recipe, data=images, teacher=teacher, objective=CosineToTeacher(), device="cpu",
        evaluate_every=0, quiet=True,
    )  # fmt: skip
    print(f"{result.updates} updates without a label")


if __name__ == "__main__":
    main()
