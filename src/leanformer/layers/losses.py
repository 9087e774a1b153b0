"""The three losses of module imitation: a student without token mixer follows a teacher block by block.

    L_in'  mean of (T_s − T_t)²                 T: output of a block                                     Eq. 6
    L_rel  mean of (R(T_s) − R(T_t))²           R(T) = T̃ T̃ᵀ, T̃: rows of T of length 1                   Eq. 7
    L_out  mean of (f(LN(x_s)) − g(LN(x_t)))²   f: the affine, g: the teacher's token mixer              Eq. 8

A relation matrix has P² entries: 40 MB an image for a map of 56 × 56. None is needed for the loss. With D = T̃_s − T̃_t
and S = T̃_s + T̃_t, R(T_s) − R(T_t) = (D Sᵀ + S Dᵀ) / 2, so that

    ‖R(T_s) − R(T_t)‖² = ( ⟨Dᵀ D, Sᵀ S⟩ + ⟨Sᵀ D, (Sᵀ D)ᵀ⟩ ) / 2

which are three matrices of C². Every term is of second order in D: nothing large cancels when the student is close.

B batch, P positions, C channels. Equation numbers are those of Wang et al., CVPR 2023.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Distillation = Literal["soft", "hard"]
FLOOR = 1e-3
"""The least mean square that a relative loss divides by: a token mixer on a map of one place gives zeros alone."""


def feature_loss(student: Tensor, teacher: Tensor, relative: bool = False) -> Tensor:
    """L_in' of two block outputs, L_out of two token mixers' outputs; any layout.

    `relative` divides by the mean square of the teacher's features, which grows a hundredfold from the first block of
    a network to its last: then every block counts alike, and a weight means the same in every network.

    >>> feature_loss(torch.ones(2, 5, 8), 2 * torch.ones(2, 5, 8), relative=True)
    tensor(0.2500)
    """
    _same_shape(student, teacher)
    loss = F.mse_loss(student.float(), teacher.float())
    return loss / teacher.float().square().mean().clamp(min=FLOOR) if relative else loss


def relation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """L_rel of two block outputs (B, P, C): how alike any two positions are, by the cosine of their features.

    >>> relation_loss(torch.eye(4)[None], torch.eye(4)[None])
    tensor(0.)
    """
    _same_shape(student, teacher)
    _, P, C = student.shape
    with torch.autocast(student.device.type, enabled=False):
        ours, theirs = F.normalize(student.float(), dim=-1), F.normalize(teacher.float(), dim=-1)  # (B, P, C)
        squares = _by_positions(ours, theirs) if P <= C else _by_channels(ours, theirs)  # (B,)
        return squares.mean() / P**2


def _by_positions(ours: Tensor, theirs: Tensor) -> Tensor:
    """‖R − R'‖² for each image as the equation says; the matrices are small where positions are few."""
    return (ours @ ours.mT - theirs @ theirs.mT).square().sum((1, 2))  # (B, P, P) → (B,)


def _by_channels(ours: Tensor, theirs: Tensor) -> Tensor:
    """The same from matrices of channels."""
    D, S = ours - theirs, ours + theirs  # (B, P, C)
    DD, SS, SD = D.mT @ D, S.mT @ S, S.mT @ D  # (B, C, C)
    return ((DD * SS).sum((1, 2)) + (SD * SD.mT).sum((1, 2))) / 2


def distil(student: Tensor, teacher: Tensor, kind: Distillation = "soft", temperature: float = 1.0) -> Tensor:
    """Logit distillation: the divergence from the teacher's probabilities, or cross-entropy with its top class.

    >>> distil(torch.zeros(2, 5), torch.zeros(2, 5))
    tensor(0.)
    """
    if student.shape != teacher.shape:
        raise ValueError(
            f"the teacher answers {tuple(teacher.shape)}, the student {tuple(student.shape)}: other classes"
        )
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(1))
    ours, theirs = (F.log_softmax(logits / temperature, dim=1) for logits in (student, teacher))
    return F.kl_div(ours, theirs, log_target=True, reduction="batchmean") * temperature**2


def _same_shape(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape:
        raise ValueError(
            f"cannot imitate {tuple(teacher.shape)} with {tuple(student.shape)}: "
            "the imitation teacher must be of the student's shape, block by block"
        )
