"""The operations of optimizers: a step of AdamW, and the clipping of gradients by their global norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .array_lists import spread
from .case import Case
from .comparison import Float64
from .laws.clip_grad_norm import CLIP_LAWS
from .laws.optimizers import ADAM_LAWS
from .operation import Operation

# 1 - beta^t is 1 in float64 from far fewer steps on, whatever beta: a step that is not corrected.
UNCORRECTED = 2**62


def _adam_cases() -> Any:
    from .cases.optimizers import ADAM_CASES

    return ADAM_CASES


def _as_declared(case: Case, conventions: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a step of the textbook whose parameters are those of the convention, but for the decay.

    No bias is left at a step so late that it is corrected by 1; eps behind the root is a moment that much larger; eps before the
    correction is a larger one.
    """
    given = case.arguments()
    if conventions["bias_correction"] == "off":
        given["step"] = UNCORRECTED
    eps, beta2, c = given["eps"], given["beta2"], 1.0 - given["beta2"] ** given["step"]
    if conventions["adam_eps"] == "inside":
        given["v"], given["eps"] = np.asarray(given["v"], np.float64) + eps * c / beta2, 0.0
    elif conventions["adam_eps"] == "uncorrected":
        given["eps"] = eps / np.sqrt(c)
    return given if conventions["decay"] == "old" else {**given, "weight_decay": 0.0}


def stepped(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's parameters and moments, in a convention."""
    given, plain = _as_declared(case, conventions), case.arguments()
    param, m, v = reference.adamw_step(**given)
    if conventions["adam_eps"] == "inside":
        _, m, v = reference.adamw_step(**plain)
    param = param * _kept(plain, conventions) - _taken(plain, conventions)
    if conventions["zero_over_zero"] == "nan" and plain["eps"] == 0.0:
        param = np.where((m == 0.0) & (v == 0.0), np.nan, param)
    return {"param": np.asarray(param), "m": np.asarray(m), "v": np.asarray(v)}


def _kept(given: Mapping[str, Any], conventions: Mapping[str, str]) -> float:
    """What is left of a parameter that has already moved."""
    return 1.0 - float(given["lr"] * given["weight_decay"]) if conventions["decay"] == "new" else 1.0


def _taken(given: Mapping[str, Any], conventions: Mapping[str, str]) -> Float64:
    """What is taken off a parameter whatever the learning rate."""
    p = np.asarray(given["param"], np.float64)
    return p * given["weight_decay"] if conventions["decay"] == "without_lr" else np.zeros(p.shape)


def _step_bound(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """`adamw_step_bound` of the same arguments; what the decay of another convention rounds is added."""
    given, plain = _as_declared(case, conventions), case.arguments()
    allowed = bounds.adamw_step_bound(arithmetic, **given, eps_corrected=conventions["adam_eps"] == "uncorrected")
    if conventions["adam_eps"] == "inside":
        of_the_moments = bounds.adamw_step_bound(arithmetic, **plain)
        allowed = {**of_the_moments, "param": np.where(np.isfinite(of_the_moments["v"]), allowed["param"], np.inf)}
    kept, taken = _kept(plain, conventions), _taken(plain, conventions)
    if conventions["decay"] != "old":
        wanted = stepped(case, conventions)["param"]
        allowed["param"] = bounds.decayed_bound(arithmetic, allowed["param"] * abs(kept), wanted, np.abs(taken))
    return allowed


def _clip_cases() -> Any:
    from .cases.clip_grad_norm import CLIP_CASES

    return CLIP_CASES


def _added(conventions: Mapping[str, str]) -> float:
    """What is added to the norm before the limit is divided by it."""
    return 1e-6 if conventions["clip_denominator"] == "norm_plus_1e-6" else 0.0


def clipped(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's gradients, one by one, and the norm; scaled once more where the convention divides by a little more."""
    arguments = case.arguments()
    grads, norm = reference.clip_grad_norm(**arguments)
    limit, added = arguments["max_norm"], _added(conventions)
    if added and norm + added > limit:
        wide = [np.asarray(g, np.float64) for g in arguments["grads"]]
        grads = [g * (limit / (float(norm) + added)) for g in wide]
    return {**spread("grads", grads), "norm": norm}


CLIP_GRAD_NORM = Operation(
    name="clip_grad_norm",
    summary="All gradients of a list scaled by one factor, so that their global norm is at most max_norm.",
    oracle=reference.clip_grad_norm,
    answer=clipped,
    bound=lambda arithmetic, case, conventions: bounds.clip_grad_norm_bound(arithmetic, **case.arguments(), added=_added(conventions)),
    cases=_clip_cases,
    laws=CLIP_LAWS,
    source="Pascanu, Mikolov and Bengio 2013 (arXiv 1211.5063), algorithm 1",
)

ADAMW_STEP = Operation(
    name="adamw_step",
    summary="One step of Adam with decoupled weight decay: the parameters and both moments.",
    oracle=reference.adamw_step,
    answer=stepped,
    bound=_step_bound,
    cases=_adam_cases,
    laws=ADAM_LAWS,
    source="Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2; Kingma and Ba 2015 (arXiv 1412.6980)",
)
