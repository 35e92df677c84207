"""Mutants of the distillation family: mixtures, means over classes, logarithms, and a teacher compared with itself."""

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
