"""The operations of losses: targets, cross-entropy and distillation with their gradients, and over a sharded vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .case import Case
from .comparison import Float64
from .laws.distillation import DISTILLATION_BACKWARD_LAWS, DISTILLATION_LAWS
from .laws.losses import CROSS_ENTROPY_BACKWARD_LAWS, CROSS_ENTROPY_LAWS, SHARDED_LAWS
from .laws.next_token_targets import TARGET_LAWS
from .operation import Operation, as_float64


def _target_cases() -> Any:
    from .cases.next_token_targets import TARGET_CASES

    return TARGET_CASES


def _cross_entropy_cases() -> Any:
    from .cases.losses import CROSS_ENTROPY_CASES

    return CROSS_ENTROPY_CASES


def _backward_cases() -> Any:
    from .cases.losses import CROSS_ENTROPY_BACKWARD_CASES

    return CROSS_ENTROPY_BACKWARD_CASES


def _sharded_cases() -> Any:
    from .cases.losses import SHARDED_CASES

    return SHARDED_CASES


def _distillation_cases() -> Any:
    from .cases.losses import DISTILLATION_CASES

    return DISTILLATION_CASES


def _distillation_backward_cases() -> Any:
    from .cases.losses import DISTILLATION_BACKWARD_CASES

    return DISTILLATION_BACKWARD_CASES


def _of_nothing(loss: Float64, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The loss, with a mean over no weight as the subject declares it."""
    if conventions["all_ignored"] == "nan" and case.options.get("reduction", "mean") == "mean" and _weight(case) == 0.0:
        return {"loss": np.asarray(np.nan)}
    return {"loss": loss}


def _gradient(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The gradient; NaN where a declared mean over no weight, or what stands in an ignored row, makes it so."""
    dz = reference.cross_entropy_backward(**case.arguments())
    counts = case.arrays["targets"] != case.options.get("ignore_index", -100)
    unsaid = np.zeros(counts.shape, dtype=bool)
    if conventions["all_ignored"] == "nan" and case.options.get("reduction", "mean") == "mean" and _weight(case) == 0.0:
        unsaid |= counts
    if conventions["ignored_logits"] == "spread":
        unsaid |= ~counts & ~np.isfinite(case.arrays["logits"].astype(np.float64)).all(axis=-1)
    return {"dlogits": np.where(unsaid[..., None], np.nan, dz)}


def _weight(case: Case) -> float:
    """The sum of the weights of the targets that count."""
    y = case.arrays["targets"]
    y = y[y != case.options.get("ignore_index", -100)]
    return float(case.arrays["weights"].astype(np.float64)[y].sum()) if "weights" in case.arrays else float(y.size)


NEXT_TOKEN_TARGETS = Operation(
    name="next_token_targets",
    summary="What each position is to predict: the token after it, where that is no prompt and no other document.",
    oracle=reference.next_token_targets,
    answer=lambda case, conventions: as_float64({"targets": reference.next_token_targets(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.next_token_targets_bound(arithmetic, case.arrays["tokens"]),
    cases=_target_cases,
    laws=TARGET_LAWS,
    source="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training, equation 1; NVIDIA-NeMo/Speech#6409",
)

CROSS_ENTROPY = Operation(
    name="cross_entropy",
    summary="Cross-entropy of rows of logits, with ignored targets, class weights, label smoothing and z-loss.",
    oracle=reference.cross_entropy,
    answer=lambda case, conventions: _of_nothing(reference.cross_entropy(**case.arguments()), case, conventions),
    bound=lambda arithmetic, case, conventions: bounds.cross_entropy_bound(arithmetic, **case.arguments()),
    cases=_cross_entropy_cases,
    laws=CROSS_ENTROPY_LAWS,
    source="Szegedy et al. 2016 (arXiv 1512.00567), section 7; z-loss: Chowdhery et al. 2022 (arXiv 2204.02311), section 5",
)

CROSS_ENTROPY_BACKWARD = Operation(
    name="cross_entropy_backward",
    summary="The gradient of cross-entropy with respect to the logits.",
    oracle=reference.cross_entropy_backward,
    answer=_gradient,
    bound=lambda arithmetic, case, conventions: bounds.cross_entropy_backward_bound(arithmetic, **case.arguments()),
    cases=_backward_cases,
    laws=CROSS_ENTROPY_BACKWARD_LAWS,
    source="Bridle 1990 (doi 10.1007/978-3-642-76153-9_28); z-loss: Chowdhery et al. 2022 (arXiv 2204.02311), section 5",
)

VOCAB_PARALLEL_CROSS_ENTROPY = Operation(
    name="vocab_parallel_cross_entropy",
    summary="Cross-entropy of logits whose vocabulary is cut into equal shards, one a rank.",
    oracle=reference.vocab_parallel_cross_entropy,
    answer=lambda case, conventions: _of_nothing(reference.vocab_parallel_cross_entropy(**case.arguments()), case, conventions),
    bound=lambda arithmetic, case, conventions: bounds.vocab_parallel_cross_entropy_bound(arithmetic, **case.arguments()),
    cases=_sharded_cases,
    laws=SHARDED_LAWS,
    source="Shoeybi et al. 2019 (arXiv 1909.08053), section 3; NVIDIA/Megatron-LM#737",
)

DISTILLATION_LOSS = Operation(
    name="distillation_loss",
    summary="A student's divergence from its teacher at a temperature, mixed with the cross-entropy of the targets.",
    oracle=reference.distillation_loss,
    answer=lambda case, conventions: _of_nothing(reference.distillation_loss(**case.arguments()), case, conventions),
    bound=lambda arithmetic, case, conventions: bounds.distillation_loss_bound(arithmetic, **case.arguments()),
    cases=_distillation_cases,
    laws=DISTILLATION_LAWS,
    source="Hinton, Vinyals and Dean 2015 (arXiv 1503.02531), section 2; Agarwal et al. 2024 (arXiv 2306.13649), equation 1",
)

DISTILLATION_LOSS_BACKWARD = Operation(
    name="distillation_loss_backward",
    summary="The gradient of the distillation loss with respect to the student's logits.",
    oracle=reference.distillation_loss_backward,
    answer=lambda case, conventions: as_float64({"dstudent": reference.distillation_loss_backward(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.distillation_loss_backward_bound(arithmetic, **case.arguments()),
    cases=_distillation_backward_cases,
    laws=DISTILLATION_BACKWARD_LAWS,
    source="Hinton, Vinyals and Dean 2015 (arXiv 1503.02531), equation 2; Agarwal et al. 2024 (arXiv 2306.13649)",
)
