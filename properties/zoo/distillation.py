"""Mutants of the distillation family: mixtures, means over classes, logarithms, a teacher compared with itself, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import textbook_losses as textbook
from .specimen import mutant
from .textbook_losses import Array

FAMILY = "distillation"
Rows = Callable[[Array, Array, str, float], Array]


def of_rows(rows: Rows) -> Callable[..., Array]:
    """The textbook's loss with another divergence of each row, under the name and the fault of that."""
    def loss(
        student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
        ignore_index: int = -100,
    ) -> Array:  # fmt: skip
        return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence,
                                          beta=beta, ignore_index=ignore_index, rows=rows)  # fmt: skip

    loss.__name__, loss.__doc__ = rows.__name__, rows.__doc__
    return loss


def of_slopes(slopes: Callable[[Array, Array, str, float, float], Array]) -> Callable[..., Array]:
    """The textbook's gradient with other slopes of each row's divergence; they are told the temperature too."""
    def gradient(
        student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
        ignore_index: int = -100,
    ) -> Array:  # fmt: skip
        def at_temperature(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
            return slopes(log_t, log_s, divergence, beta, temperature)

        return textbook.distillation_loss_backward(student, teacher, targets, dloss, temperature=temperature, alpha=alpha,
                                                   divergence=divergence, beta=beta, ignore_index=ignore_index,
                                                   slopes=at_temperature)  # fmt: skip

    gradient.__name__, gradient.__doc__ = slopes.__name__, slopes.__doc__
    return gradient


def _pair(**options: Any) -> dict[str, Any]:
    """t = (.9, .1), s = (.5, .5)."""
    s, t = np.log(np.array([[[0.5, 0.5]], [[0.9, 0.1]]], dtype=np.float32))
    return {"student": s, "teacher": t, "targets": np.array([0]), "temperature": 1.0, "alpha": 1.0, "divergence": "forward_kl", **options}


def _with_dloss(**options: Any) -> dict[str, Any]:
    """The same, and a loss that counts once."""
    return {**_pair(**options), "dloss": np.float32(1)}


def _mixed(log_t: Array, log_s: Array, log_m: Array, beta: float) -> Array:
    """beta KL(t, m) + (1 - beta) KL(s, m) for an m of one's own."""
    b = log_t.dtype.type(beta)
    of_t, of_s = (textbook.divergence_of(log_p, log_m, "forward_kl", beta) for log_p in (log_t, log_s))
    return np.asarray(b * of_t + (1 - b) * of_s)


@mutant(
    "distillation_loss", id="kd-mixture-weights-swapped", family=FAMILY,
    source="https://github.com/huggingface/trl/pull/3043 https://github.com/huggingface/trl/issues/6780 "
    "https://github.com/modelscope/ms-swift/pull/10213", trigger=lambda: _pair(divergence="jsd", beta=0.1),
)  # fmt: skip
@of_rows
def mixed_with_the_students_share(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
    """The mixture holds beta of the student and 1 - beta of the teacher, while the two divergences keep their weights."""
    if divergence != "jsd":
        return textbook.divergence_of(log_t, log_s, divergence, beta)
    b = log_t.dtype.type(beta)
    return _mixed(log_t, log_s, textbook.log_mixture(log_t, log_s, 1 - b), beta)


@mutant(
    "distillation_loss", id="kd-kl-averaged-over-classes", family=FAMILY,
    source="https://github.com/HikariTJU/LD/issues/74 https://github.com/haitongli/knowledge-distillation-pytorch/issues/2", trigger=_pair,
)  # fmt: skip
@of_rows
def averaged_over_classes(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
    """The divergence is a mean over classes instead of a sum: V times too small."""
    return np.asarray(textbook.divergence_of(log_t, log_s, divergence, beta) / log_t.dtype.type(log_t.shape[-1]))


@mutant(
    "distillation_loss", id="kd-log-of-log-or-missing-log", family=FAMILY,
    source="https://github.com/nlp-with-transformers/notebooks/issues/94",
    trigger=lambda: _pair(student=np.zeros((1, 3), np.float32), teacher=np.array([[0.0, 1.0, 2.0]], np.float32)),
)  # fmt: skip
@of_rows
def log_probabilities_for_probabilities(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
    """Log-probabilities stand where the formula t (ln t - ln s) wants probabilities."""
    if divergence == "jsd":
        return textbook.divergence_of(log_t, log_s, divergence, beta)
    p, q = (log_t, log_s) if divergence == "forward_kl" else (log_s, log_t)
    return np.asarray((p * (p - q)).sum(axis=-1))


@mutant(
    "distillation_loss", id="kd-logarithm-of-a-vanished-mixture", family=FAMILY,
    source="https://github.com/linkedin/Liger-Kernel/issues/769",
    trigger=lambda: _pair(student=np.array([[0.0, 200.0]], np.float32), teacher=np.array([[0.0, 300.0]], np.float32), divergence="jsd"),
)  # fmt: skip
@of_rows
def mixed_before_the_logarithm(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
    """ln m is the logarithm of the mixed probabilities, which is that of 0 where both have vanished: 0 times infinity is NaN."""
    if divergence != "jsd":
        return textbook.divergence_of(log_t, log_s, divergence, beta)
    b = log_t.dtype.type(beta)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _mixed(log_t, log_s, np.log(b * np.exp(log_t) + (1 - b) * np.exp(log_s)), beta)


@mutant(
    "distillation_loss", id="kd-teacher-compared-with-itself", family=FAMILY,
    source="https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/66", trigger=_pair,
)  # fmt: skip
@of_rows
def teacher_against_teacher(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
    """The student's term is built from the teacher's logits: the divergence is 0, and nothing is learnt from it."""
    return textbook.divergence_of(log_t, log_t, divergence, beta)


@mutant(
    "distillation_loss_backward", id="kd-gradient-without-t-squared", family=FAMILY,
    source="https://github.com/IntelLabs/distiller/issues/122 https://github.com/keras-team/keras-io/issues/869",
    trigger=lambda: _with_dloss(temperature=4.0),
)  # fmt: skip
@of_slopes
def unscaled_by_the_temperature(log_t: Array, log_s: Array, divergence: str, beta: float, temperature: float) -> Array:
    """No T^2 on the soft term: its gradient shrinks as the temperature rises, beside that of the targets."""
    return np.asarray(textbook.slopes_of(log_t, log_s, divergence, beta) / log_t.dtype.type(temperature) ** 2)


@mutant(
    "distillation_loss_backward", id="kd-gradient-averaged-over-classes", family=FAMILY,
    source="https://github.com/HikariTJU/LD/issues/74 https://github.com/haitongli/knowledge-distillation-pytorch/issues/2",
    trigger=_with_dloss,
)  # fmt: skip
@of_slopes
def gradient_averaged_over_classes(log_t: Array, log_s: Array, divergence: str, beta: float, temperature: float) -> Array:
    """The gradient of reduction="mean" where "batchmean" is wanted: V times too small."""
    return np.asarray(textbook.slopes_of(log_t, log_s, divergence, beta) / log_t.dtype.type(log_t.shape[-1]))


@mutant(
    "distillation_loss_backward", id="kd-teacher-not-detached", family=FAMILY,
    source="https://github.com/open-mmlab/mmrazor/pull/100", trigger=_with_dloss,
)  # fmt: skip
@of_slopes
def learns_through_the_teacher_too(log_t: Array, log_s: Array, divergence: str, beta: float, temperature: float) -> Array:
    """The teacher shares the student's network and is not detached: what its logits want is added to the gradient."""
    own = textbook.slopes_of(log_t, log_s, divergence, beta)
    other = {"forward_kl": "reverse_kl", "reverse_kl": "forward_kl"}.get(divergence, divergence)
    return np.asarray(own + textbook.slopes_of(log_s, log_t, other, 1 - beta))
