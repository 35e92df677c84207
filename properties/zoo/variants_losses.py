"""Legal variants of the loss and distillation families: other orders and forms, declared means of nothing, one pass over shards."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_losses as textbook
from .specimen import variant
from .textbook_decoding import working
from .textbook_losses import Array, log_softmax

FAMILY = "loss"
FORMATS = ["float32", "float64", "float16", "bfloat16"]
IN_FLOAT64 = Arithmetic(accumulate="float64", elementwise="float64")


@variant("cross_entropy", id="cross-entropy-textbook", family=FAMILY, dtypes=FORMATS)
def loss_as_in_the_book(
    logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str,
) -> Array:  # fmt: skip
    """Log-probabilities, gathered at the targets."""
    return textbook.cross_entropy(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing,
                                  z_loss=z_loss, reduction=reduction)  # fmt: skip


@variant("cross_entropy", id="cross-entropy-nan-of-nothing", family=FAMILY, conventions={"all_ignored": "nan"},
         source="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html")
def loss_that_divides_by_nothing(
    logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str
) -> Array:  # fmt: skip
    """The mean over no target is 0 / 0, as PyTorch has it, and this says so."""
    loss = textbook.cross_entropy(logits, targets, weights=weights, ignore_index=ignore_index, label_smoothing=label_smoothing,
                                  reduction=reduction)  # fmt: skip
    y = targets[targets != ignore_index]
    weight = float(y.size) if weights is None else float(weights.astype(np.float64)[y].sum())
    return np.asarray(np.where(reduction == "mean" and weight == 0.0, np.nan, loss)).astype(logits.dtype)


@variant("cross_entropy", id="cross-entropy-mean-only", family=FAMILY, only={"reduction": ["mean"]})
def loss_of_one_mean(logits: Any, targets: Any, *, ignore_index: int = -100) -> Array:
    """lse - z_y with the sum of the others through log1p, as a mean and nothing else."""
    z, y, counts = textbook.counted(logits, targets, ignore_index)
    m = z.max(axis=-1, keepdims=True)
    e = np.exp(z - m)
    np.put_along_axis(e, z.argmax(axis=-1)[:, None], 0, axis=-1)
    loss = np.log1p(e.sum(axis=-1)) + (m - np.take_along_axis(z, y[:, None], axis=-1))[:, 0]
    return textbook.reduced(loss, np.ones(len(y), loss.dtype), counts, np.shape(targets), "mean").astype(logits.dtype)


@variant("cross_entropy", id="cross-entropy-one-hot", family=FAMILY, arithmetic=IN_FLOAT64, dtypes=FORMATS,
         conventions={"impossible_class": "nan"})
def loss_by_one_hot(
    logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str,
) -> Array:  # fmt: skip
    """A smoothed one-hot times all log-probabilities, in float64, ignored rows multiplied with 0 after their logits were zeroed."""
    V, keep = logits.shape[-1], np.asarray(targets) != ignore_index
    z = np.where(keep[..., None], np.asarray(logits, np.float64), 0.0)
    w = np.ones(V) if weights is None else np.asarray(weights, np.float64)
    y = np.where(keep, targets, 0)
    soft = (1 - label_smoothing) * np.eye(V)[y] + label_smoothing / V
    m = z.max(axis=-1, keepdims=True)
    lse = m + np.log(np.exp(z - m).sum(axis=-1, keepdims=True))
    rows = ((w * soft * (lse - z)).sum(axis=-1) + z_loss * w[y] * lse[..., 0] ** 2) * keep
    weight = (w[y] * keep).sum()
    mean = rows.sum() / weight if weight > 0 else 0.0
    return np.asarray({"none": rows, "sum": rows.sum(), "mean": mean}[reduction]).astype(logits.dtype)


@variant("cross_entropy", id="cross-entropy-online", family=FAMILY, arithmetic=Arithmetic(tile_min=4))
def loss_in_one_pass(logits: Any, targets: Any, *, ignore_index: int = -100, z_loss: float = 0.0, reduction: str) -> Array:
    """Maximum and sum in one pass over blocks of four classes, the sum rescaled as the maximum rises."""
    def rows(z: Array, y: Array, w: Array, e: float, z_loss: float) -> Array:
        m, l = np.full(len(z), -np.inf, z.dtype), np.zeros(len(z), z.dtype)
        for start in range(0, z.shape[-1], 4):
            block = z[:, start : start + 4]
            new = np.maximum(m, block.max(axis=-1))
            l = l * np.exp(m - new) + np.exp(block - new[:, None]).sum(axis=-1, dtype=z.dtype)
            m = new
        lse = m + np.log(l)
        return np.asarray(lse - np.take_along_axis(z, y[:, None], axis=-1)[:, 0] + z.dtype.type(z_loss) * lse**2)

    return textbook.cross_entropy(logits, targets, ignore_index=ignore_index, z_loss=z_loss, reduction=reduction, rows=rows)


@variant("cross_entropy_backward", id="cross-entropy-gradient-textbook", family=FAMILY, dtypes=FORMATS)
def gradient_as_in_the_book(
    logits: Any, targets: Any, dloss: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str,
) -> Array:  # fmt: skip
    """Softmax times the sum of the weights, less the weights."""
    return textbook.cross_entropy_backward(logits, targets, dloss, weights=weights, ignore_index=ignore_index,
                                           label_smoothing=label_smoothing, z_loss=z_loss, reduction=reduction)  # fmt: skip


@variant("cross_entropy_backward", id="cross-entropy-gradient-from-lse", family=FAMILY)
def gradient_from_the_log_sum_exp(logits: Any, targets: Any, dloss: Any, *, ignore_index: int = -100, reduction: str) -> Array:
    """p = e^(z - lse), as a kernel has it that kept lse from the forward pass; 1 taken from the target's p."""
    z, y, counts = textbook.counted(logits, targets, ignore_index)
    m = z.max(axis=-1, keepdims=True)
    p = np.exp(z - (m + np.log(np.exp(z - m).sum(axis=-1, keepdims=True))))
    p[np.arange(len(y)), y] -= 1
    g = np.broadcast_to(working(dloss).reshape(-1), counts.shape)[counts][:, None]
    whole = np.zeros((counts.size, logits.shape[-1]), z.dtype)
    whole[counts] = p * (g / z.dtype.type(max(len(y), 1)) if reduction == "mean" else g)
    return whole.reshape(logits.shape).astype(logits.dtype)


def _in_shards(shards: Any, targets: Any, ignore_index: int, merge: bool) -> tuple[list[Array], Array, Array, Array]:
    """Rows of each shard, targets, which rows count, and lse: from one maximum, or merged from the shards' own."""
    flat = np.asarray(targets).reshape(-1)
    counts = flat != ignore_index
    local = [working(shard).reshape(flat.size, shard.shape[-1])[counts] for shard in shards]
    if merge:
        parts = np.stack([z.max(axis=-1) + np.log(np.exp(z - z.max(axis=-1, keepdims=True)).sum(axis=-1)) for z in local])
        m = parts.max(axis=0)
        return local, flat[counts], counts, m + np.log(np.exp(parts - m).sum(axis=0))
    m = np.max([z.max(axis=-1) for z in local], axis=0)
    return local, flat[counts], counts, m + np.log(np.sum([np.exp(z - m[:, None]).sum(axis=-1) for z in local], axis=0))


def _sharded(shards: Any, targets: Any, ignore_index: int, label_smoothing: float, z_loss: float, reduction: str, merge: bool) -> Array:
    local, y, counts, lse = _in_shards(shards, targets, ignore_index, merge)
    n, f, rows = shards[0].shape[-1], lse.dtype.type, np.arange(len(y))
    z_y = np.sum([np.where(y // n == r, z[rows, y % n], 0) for r, z in enumerate(local)], axis=0)
    loss = lse - z_y
    if label_smoothing:
        mean = np.sum([z.sum(axis=-1) for z in local], axis=0) / f(n * len(local))
        loss = (1 - f(label_smoothing)) * loss + f(label_smoothing) * (lse - mean)
    loss = np.asarray(loss + f(z_loss) * lse**2, dtype=lse.dtype)
    return textbook.reduced(loss, np.ones(len(y), loss.dtype), counts, np.shape(targets), reduction).astype(shards[0].dtype)


@variant("vocab_parallel_cross_entropy", id="vocab-parallel-three-reductions", family=FAMILY, dtypes=FORMATS,
         source="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/tensor_parallel/cross_entropy.py")
def shards_of_one_maximum(
    shards: Any, targets: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str
) -> Array:  # fmt: skip
    """One maximum of all ranks, then their sums of exponentials and the label's logit."""
    return _sharded(shards, targets, ignore_index, label_smoothing, z_loss, reduction, merge=False)


@variant("vocab_parallel_cross_entropy", id="vocab-parallel-merged-lse", family=FAMILY, arithmetic=Arithmetic(merges_lse=True))
def shards_merged(
    shards: Any, targets: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str
) -> Array:  # fmt: skip
    """Each rank takes the log-sum-exp of its own part, and these are merged."""
    return _sharded(shards, targets, ignore_index, label_smoothing, z_loss, reduction, merge=True)


@variant("next_token_targets", id="targets-place-by-place", family=FAMILY)
def targets_as_in_the_book(tokens: Any, *, prompt_lengths: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Row by row and place by place."""
    return textbook.next_token_targets(tokens, prompt_lengths=prompt_lengths, segments=segments, ignore_index=ignore_index)


@variant("next_token_targets", id="targets-rolled", family=FAMILY)
def targets_rolled(tokens: Any, *, prompt_lengths: Any = None, segments: Any = None, ignore_index: int = -100) -> Array:
    """Tokens rolled by one, then the wrapped place, the prompts and the borders of documents overwritten."""
    target = np.roll(np.asarray(tokens, np.int64), -1, axis=1)
    place = np.arange(1, tokens.shape[1] + 1)
    hidden = np.broadcast_to(place == tokens.shape[1], tokens.shape).copy()
    if prompt_lengths is not None:
        hidden |= place < np.asarray(prompt_lengths)[:, None]
    if segments is not None:
        hidden |= np.roll(segments, -1, axis=1) != segments
    target[hidden] = ignore_index
    return target


@variant("distillation_loss", id="distillation-textbook", family="distillation", dtypes=FORMATS)
def distilled_as_in_the_book(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """Log-probabilities of both, a mixture by logaddexp."""
    return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence=divergence, beta=beta,
                                      ignore_index=ignore_index)  # fmt: skip


@variant("distillation_loss", id="distillation-entropy-and-cross", family="distillation", only={"divergence": ["forward_kl"]},
         conventions={"impossible_class": "nan"})
def distilled_by_entropies(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, ignore_index: int = -100
) -> Array:  # fmt: skip
    """KL(t, s) as the teacher's cross-entropy less its entropy; logits multiplied with 1 / T."""
    def rows(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        t = np.exp(log_t)
        return np.asarray((t * log_t).sum(axis=-1) - (t * log_s).sum(axis=-1))

    return textbook.distillation_loss(student, teacher, targets, temperature=temperature, alpha=alpha, divergence="forward_kl",
                                      ignore_index=ignore_index, rows=rows)  # fmt: skip


@variant("distillation_loss", id="distillation-in-float64", family="distillation", arithmetic=IN_FLOAT64, dtypes=FORMATS)
def distilled_in_float64(
    student: Any, teacher: Any, targets: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """Everything in float64, the classes in reverse, rounded once at the end."""
    def rows(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        return textbook.divergence_of(log_t[:, ::-1], log_s[:, ::-1], divergence, beta)

    wide = textbook.distillation_loss(np.asarray(student, np.float64), np.asarray(teacher, np.float64), targets, temperature=temperature,
                                      alpha=alpha, divergence=divergence, beta=beta, ignore_index=ignore_index, rows=rows)  # fmt: skip
    return wide.astype(student.dtype)


@variant("distillation_loss", id="distillation-alpha-1", family="distillation", only={"divergence": ["reverse_kl"]},
         conventions={"impossible_class": "nan"})
def distilled_without_targets(student: Any, teacher: Any, targets: Any, *, temperature: float, ignore_index: int = -100) -> Array:
    """The divergence alone, added up over rows and classes at once: alpha is not taken."""
    s, y, counts = textbook.counted(student, targets, ignore_index)
    t, f = working(teacher).reshape(counts.size, teacher.shape[-1])[counts], s.dtype.type
    log_t, log_s = log_softmax(t * (f(1) / f(temperature))), log_softmax(s * (f(1) / f(temperature)))
    total = (np.exp(log_s) * (log_s - log_t)).sum(dtype=s.dtype)
    return np.asarray(f(temperature) ** 2 * total / f(max(len(y), 1))).astype(student.dtype)


@variant("distillation_loss_backward", id="distillation-gradient-textbook", family="distillation", dtypes=FORMATS)
def distilled_slopes_as_in_the_book(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """s - t, or s times what is left of the logarithm's difference when its mean is taken away."""
    return textbook.distillation_loss_backward(student, teacher, targets, dloss, temperature=temperature, alpha=alpha,
                                               divergence=divergence, beta=beta, ignore_index=ignore_index)  # fmt: skip


@variant("distillation_loss_backward", id="distillation-gradient-by-log-probabilities", family="distillation")
def distilled_slopes_in_two_steps(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """As automatic differentiation has it: first with respect to ln s, then less s times the sum of that."""
    def slopes(log_t: Array, log_s: Array, divergence: str, beta: float) -> Array:
        s, t, b = np.exp(log_s), np.exp(log_t), log_t.dtype.type(beta)
        if divergence == "forward_kl":
            d = -t
        elif divergence == "reverse_kl":
            d = s * (textbook.apart(log_s, log_t) + 1)
        else:
            log_m = textbook.log_mixture(log_t, log_s, b)
            through_m = -(b * t + (1 - b) * s) * np.exp(np.log(1 - b) + textbook.apart(log_s, log_m))
            d = (1 - b) * s * (textbook.apart(log_s, log_m) + 1) + through_m
        return np.asarray(d - s * d.sum(axis=-1, keepdims=True, dtype=s.dtype))

    return textbook.distillation_loss_backward(student, teacher, targets, dloss, temperature=temperature, alpha=alpha,
                                               divergence=divergence, beta=beta, ignore_index=ignore_index, slopes=slopes)  # fmt: skip


@variant("distillation_loss_backward", id="distillation-gradient-in-float64", family="distillation", arithmetic=IN_FLOAT64, dtypes=FORMATS)
def distilled_slopes_in_float64(
    student: Any, teacher: Any, targets: Any, dloss: Any, *, temperature: float, alpha: float, divergence: str, beta: float = 0.5,
    ignore_index: int = -100,
) -> Array:  # fmt: skip
    """Everything in float64, rounded once at the end."""
    wide = textbook.distillation_loss_backward(np.asarray(student, np.float64), np.asarray(teacher, np.float64), targets, float(dloss),
                                               temperature=temperature, alpha=alpha, divergence=divergence, beta=beta,
                                               ignore_index=ignore_index)  # fmt: skip
    return wide.astype(student.dtype)
