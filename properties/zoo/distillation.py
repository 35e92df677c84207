"""Mutants of the distillation family: mixtures, means over classes, logarithms, a teacher compared with itself, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_losses as textbook
from .specimen import mutant
from .textbook_losses import Array

FAMILY = "distillation"


def _pair(**options: Any) -> dict[str, Any]:
    """t = (.9, .1), s = (.5, .5)."""
    s, t = np.log(np.array([[[0.5, 0.5]], [[0.9, 0.1]]], dtype=np.float32))
    return {"student": s, "teacher": t, "targets": np.array([0]), "temperature": 1.0, "alpha": 1.0, "divergence": "forward_kl", **options}


@mutant(
    "distillation_loss", id="kd-mixture-weights-swapped", family=FAMILY,
    source="https://github.com/huggingface/trl/pull/3043 https://github.com/huggingface/trl/issues/6780 "
    "https://github.com/modelscope/ms-swift/pull/10213", trigger=lambda: _pair(divergence="jsd", beta=0.1),
)  # fmt: skip
def mixed_with_the_students_share(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """The mixture holds beta of the student and 1 - beta of the teacher, while the two divergences keep their weights."""
    def rows(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        if divergence != "jsd":
            return textbook.divergence_of(log_t, log_s, divergence, beta)
        b = log_t.dtype.type(beta)
        log_m = np.logaddexp(np.log(1 - b) + log_t, np.log(b) + log_s)
        of_t, of_s = (textbook.divergence_of(log_p, log_m, "forward_kl", beta) for log_p in (log_t, log_s))
        return np.asarray(b * of_t + (1 - b) * of_s)

    return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence, beta=beta,
                                      ignore_index=ignore_index, rows=rows)  # fmt: skip


@mutant(
    "distillation_loss", id="kd-kl-averaged-over-classes", family=FAMILY,
    source="https://github.com/HikariTJU/LD/issues/74 https://github.com/haitongli/knowledge-distillation-pytorch/issues/2", trigger=_pair,
)  # fmt: skip
def averaged_over_classes(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """The divergence is a mean over classes instead of a sum: V times too small."""
    def rows(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        return np.asarray(textbook.divergence_of(log_t, log_s, divergence, beta) / log_t.dtype.type(log_t.shape[-1]))

    return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence, beta=beta,
                                      ignore_index=ignore_index, rows=rows)  # fmt: skip


@mutant(
    "distillation_loss", id="kd-log-of-log-or-missing-log", family=FAMILY,
    source="https://github.com/nlp-with-transformers/notebooks/issues/94",
    trigger=lambda: _pair(student=np.zeros((1, 3), np.float32), teacher=np.array([[0.0, 1.0, 2.0]], np.float32)),
)  # fmt: skip
def log_probabilities_for_probabilities(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """Log-probabilities stand where the formula t (ln t - ln s) wants probabilities."""
    def rows(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        if divergence == "jsd":
            return textbook.divergence_of(log_t, log_s, divergence, beta)
        p, q = (log_t, log_s) if divergence == "forward_kl" else (log_s, log_t)
        return np.asarray((p * (p - q)).sum(axis=-1))

    return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence, beta=beta,
                                      ignore_index=ignore_index, rows=rows)  # fmt: skip


@mutant(
    "distillation_loss", id="kd-logarithm-of-a-vanished-mixture", family=FAMILY,
    source="https://github.com/linkedin/Liger-Kernel/issues/769",
    trigger=lambda: _pair(student=np.array([[0.0, 200.0]], np.float32), teacher=np.array([[0.0, 300.0]], np.float32), divergence="jsd"),
)  # fmt: skip
def mixed_before_the_logarithm(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """ln m is the logarithm of the mixed probabilities, which is that of 0 where both have vanished: 0 times infinity is NaN."""
    def rows(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        if divergence != "jsd":
            return textbook.divergence_of(log_t, log_s, divergence, beta)
        b = log_t.dtype.type(beta)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_m = np.log(b * np.exp(log_t) + (1 - b) * np.exp(log_s))
            of_t, of_s = (textbook.divergence_of(log_p, log_m, "forward_kl", beta) for log_p in (log_t, log_s))
        return np.asarray(b * of_t + (1 - b) * of_s)

    return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence, beta=beta,
                                      ignore_index=ignore_index, rows=rows)  # fmt: skip


@mutant(
    "distillation_loss", id="kd-teacher-compared-with-itself", family=FAMILY,
    source="https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/66", trigger=_pair,
)  # fmt: skip
def teacher_against_teacher(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """The student's term is built from the teacher's logits: the divergence is 0, and nothing is learnt from it."""
    def rows(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        return textbook.divergence_of(log_t, log_t, divergence, beta)

    return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence, beta=beta,
                                      ignore_index=ignore_index, rows=rows)  # fmt: skip


def _with_dloss(**options: Any) -> dict[str, Any]:
    """The same, and a loss that counts once."""
    return {**_pair(**options), "dloss": np.float32(1)}


@mutant(
    "distillation_loss_backward", id="kd-gradient-without-t-squared", family=FAMILY,
    source="https://github.com/IntelLabs/distiller/issues/122 https://github.com/keras-team/keras-io/issues/869",
    trigger=lambda: _with_dloss(temperature=4.0),
)  # fmt: skip
def unscaled_by_the_temperature(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """No T^2 on the soft term: its gradient shrinks as the temperature rises, beside that of the targets."""
    def slopes(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        return np.asarray(textbook.slopes_of(log_t, log_s, divergence, beta) / log_t.dtype.type(temperature) ** 2)

    return textbook.distillation_loss_backward(student, teacher, targets, dloss, temperature=temperature, alpha=alpha,
                                               divergence=divergence, beta=beta, ignore_index=ignore_index, slopes=slopes)  # fmt: skip


@mutant(
    "distillation_loss_backward", id="kd-gradient-averaged-over-classes", family=FAMILY,
    source="https://github.com/HikariTJU/LD/issues/74 https://github.com/haitongli/knowledge-distillation-pytorch/issues/2",
    trigger=_with_dloss,
)  # fmt: skip
def gradient_averaged_over_classes(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """The gradient of reduction="mean" where "batchmean" is wanted: V times too small."""
    def slopes(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        return np.asarray(textbook.slopes_of(log_t, log_s, divergence, beta) / log_t.dtype.type(log_t.shape[-1]))

    return textbook.distillation_loss_backward(student, teacher, targets, dloss, temperature=temperature, alpha=alpha,
                                               divergence=divergence, beta=beta, ignore_index=ignore_index, slopes=slopes)  # fmt: skip


@mutant(
    "distillation_loss_backward", id="kd-teacher-not-detached", family=FAMILY,
    source="https://github.com/open-mmlab/mmrazor/pull/100", trigger=_with_dloss,
)  # fmt: skip
def learns_through_the_teacher_too(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """The teacher shares the student's network and is not detached: what its logits want is added to the gradient."""
    def slopes(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        own = textbook.slopes_of(log_t, log_s, divergence, beta)
        other = {"forward_kl": "reverse_kl", "reverse_kl": "forward_kl"}.get(divergence, divergence)
        return np.asarray(own + textbook.slopes_of(log_s, log_t, other, 1 - beta))

    return textbook.distillation_loss_backward(student, teacher, targets, dloss, temperature=temperature, alpha=alpha,
                                               divergence=divergence, beta=beta, ignore_index=ignore_index, slopes=slopes)  # fmt: skip
