"""The operations of costs: bytes of a cache and of training, FLOPs of a model, and how many predictions of the next token are right."""

from __future__ import annotations

from typing import Any

from oracles import reference

from . import bounds
from .laws.costs import ACCURACY_LAWS, FLOPS_LAWS, KV_BYTES_LAWS, TRAINING_BYTES_LAWS
from .operation import Operation, as_float64


def _kv_bytes_cases() -> Any:
    from .cases.costs import KV_BYTES_CASES

    return KV_BYTES_CASES


def _training_cases() -> Any:
    from .cases.costs import TRAINING_CASES

    return TRAINING_CASES


def _flops_cases() -> Any:
    from .cases.costs import FLOPS_CASES

    return FLOPS_CASES


def _accuracy_cases() -> Any:
    from .cases.token_accuracy import ACCURACY_CASES

    return ACCURACY_CASES


KV_BYTES = Operation(
    name="kv_bytes",
    summary="Bytes of the keys and values of sequences, from the keys of a model's config.json.",
    oracle=reference.kv_bytes,
    answer=lambda case, conventions: as_float64({"bytes": reference.kv_bytes(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.kv_bytes_bound(arithmetic, **case.arguments()),
    cases=_kv_bytes_cases,
    laws=KV_BYTES_LAWS,
    source="Shazeer 2019 (arXiv 1911.02150); Ainslie et al. 2023 (arXiv 2305.13245); latent: DeepSeek-AI 2024 (arXiv 2405.04434), table 1",
)

TRAINING_BYTES = Operation(
    name="training_bytes",
    summary="Bytes of weights, gradients and optimizer states on one device, by ZeRO stage and declared layout.",
    oracle=reference.training_bytes,
    answer=lambda case, conventions: as_float64({"bytes": reference.training_bytes(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.training_bytes_bound(arithmetic, **case.arguments()),
    cases=_training_cases,
    laws=TRAINING_BYTES_LAWS,
    source="Rajbhandari et al. 2020 (arXiv 1910.02054), sections 3 and 5",
)

MODEL_FLOPS = Operation(
    name="model_flops",
    summary="FLOPs of a pass over sequences, attention's quadratic part included, from the keys of a model's config.json.",
    oracle=reference.model_flops,
    answer=lambda case, conventions: as_float64({"flops": reference.model_flops(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.model_flops_bound(arithmetic, **case.arguments()),
    cases=_flops_cases,
    laws=FLOPS_LAWS,
    source="Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Chowdhery et al. 2022 (arXiv 2204.02311), appendix B",
)

TOKEN_ACCURACY = Operation(
    name="token_accuracy",
    summary="How many predictions of the next token are right, and how many there are.",
    oracle=reference.token_accuracy,
    answer=lambda case, conventions: as_float64(dict(zip(("right", "counted"), reference.token_accuracy(**case.arguments())))),
    bound=lambda arithmetic, case, conventions: bounds.token_accuracy_bound(arithmetic, **case.arguments()),
    cases=_accuracy_cases,
    laws=ACCURACY_LAWS,
    source="Radford et al. 2018; labels that were not shifted: Open-Superintelligence-Lab/5-dollar-llm#67",
)
