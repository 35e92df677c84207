"""The operations of sampling: filters on logits, penalties, and the draw of a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference

from . import bounds
from .arithmetic import ResolvedArithmetic
from .bounds.sampling import FilterParameters, parameters_of_rows
from .case import Case
from .comparison import Float64
from .laws.filter_probabilities import FILTER_LAWS
from .laws.sampling import PENALTY_LAWS, SAMPLE_LAWS
from .operation import Operation, as_float64

# The conventions that decide what a filter keeps, and the oracle's own.
FILTER_CONVENTIONS = {"top_k_ties": "lowest", "top_p_ties": "lowest", "top_p_crossing": "kept", "top_p_of": "top_k_left",
                      "min_p_order": "after_top_p", "argmax_ties": "lowest"}


def _filter_cases() -> Any:
    from .cases.sampling import FILTER_CASES

    return FILTER_CASES


def _penalty_cases() -> Any:
    from .cases.sampling import PENALTY_CASES

    return PENALTY_CASES


def _sample_cases() -> Any:
    from .cases.draws import SAMPLE_CASES

    return SAMPLE_CASES


def filter_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's probabilities, or those of the filters as the subject declares them; an open choice goes to the lowest index."""
    given = case.arguments()
    oracle = reference.filter_probabilities(**given)
    if all(conventions[name] in (own, "any") for name, own in FILTER_CONVENTIONS.items()):
        return {"probabilities": oracle}
    z = np.asarray(given.pop("logits"), np.float64)
    rows = parameters_of_rows(z.shape[:-1], **given)
    filtered = [filtered_row(row, parameters, conventions) for row, parameters in zip(z.reshape(-1, z.shape[-1]), rows)]
    return {"probabilities": np.array(filtered, dtype=np.float64).reshape(z.shape)}


def filtered_row(z: Float64, row: FilterParameters, conventions: Mapping[str, str]) -> Float64:
    """One row filtered as declared: (V,).

    Each filter keeps a prefix of the tokens in descending order; where ties are to be kept all, with all that equal its last.
    """
    w = np.exp((z - z.max()) / (row.temperature or 1.0))
    by_index = np.arange(len(z))
    order = {ties: np.lexsort((by_index if ties != "highest" else -by_index, -z)) for ties in ("lowest", "highest", "any", "all")}
    if row.temperature == 0.0:
        return np.asarray(by_index == order["lowest"][0], dtype=np.float64)
    k = len(z) if row.top_k is None else min(row.top_k, len(z))
    kept = np.zeros(len(z), dtype=bool)
    kept[order[conventions["top_k_ties"]][:k]] = True
    if conventions["top_k_ties"] == "all":
        kept = z >= np.sort(z)[-k]
    likely = w >= (0.0 if row.min_p is None else row.min_p)
    if row.top_p is not None:
        pool = np.ones(len(z), dtype=bool) if conventions["top_p_of"] == "all" else kept.copy()
        pool &= likely if conventions["min_p_order"] == "before_top_p" else True
        places = [i for i in order[conventions["top_p_ties"]] if pool[i]]
        mass = np.cumsum(w[places])
        crossing = conventions["top_p_crossing"] == "kept"
        inside = (mass - w[places] < row.top_p * mass[-1]) if crossing else (mass <= row.top_p * mass[-1])
        inside[0] = True
        kept &= np.isin(by_index, np.array(places)[inside])
    w = np.where(kept & likely, w, 0.0)
    return np.asarray(w / w.sum())


def filter_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of the probabilities where the subject's conventions and its roundings leave no decision open, else inf."""
    return bounds.filter_probabilities_bound(arithmetic, **case.arguments(), conventions=conventions)


def sample_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """0 where the draw is decided, inf where it is not, and everywhere for a subject that uses the uniforms otherwise or not at all."""
    allowed = bounds.sample_bound(arithmetic, **case.arguments())["token"]
    return {"token": allowed if conventions["uniforms"] == "contract" else np.full(allowed.shape, np.inf)}


FILTER_PROBABILITIES = Operation(
    name="filter_probabilities",
    summary="The distribution that is sampled from: softmax at a temperature, then top-k, top-p and min-p.",
    oracle=reference.filter_probabilities,
    answer=filter_answer,
    bound=filter_allowed,
    cases=_filter_cases,
    laws=FILTER_LAWS,
    source="Fan et al. 2018 (arXiv 1805.04833), Holtzman et al. 2020 (arXiv 1904.09751), Nguyen et al. 2024 (arXiv 2407.01082)",
)

APPLY_PENALTIES = Operation(
    name="apply_penalties",
    summary="Logits with the tokens so far made less likely: repetition, then frequency and presence.",
    oracle=reference.apply_penalties,
    answer=lambda case, conventions: {"logits": reference.apply_penalties(**case.arguments())},
    bound=lambda arithmetic, case, conventions: bounds.apply_penalties_bound(arithmetic, **case.arguments()),
    cases=_penalty_cases,
    laws=PENALTY_LAWS,
    source="Keskar et al. 2019 (arXiv 1909.05858), section 4.1; the OpenAI API reference",
)

SAMPLE = Operation(
    name="sample",
    summary="The token that a uniform number stands for: the inverse of the distribution function.",
    oracle=reference.sample,
    answer=lambda case, conventions: as_float64({"token": reference.sample(**case.arguments())}),
    bound=sample_allowed,
    cases=_sample_cases,
    laws=SAMPLE_LAWS,
    source="Devroye 1986, Non-Uniform Random Variate Generation, section III.2",
)
