"""Golden cases of losses over rows of logits: cross-entropy, its gradient, its form over a cut vocabulary, and distillation."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.case import Case

from . import draws
from .draws import Array

# name: (format, shape of logits, options, what is given besides, exponent of the logits)
CROSS_ENTROPY: dict[str, tuple[str, tuple[int, ...], dict[str, Any], tuple[str, ...], int]] = {
    "smallest": ("float64", (1,), {"reduction": "mean"}, (), 0),
    "pair": ("float64", (5, 2), {"reduction": "none"}, (), 0),
    "no-rows": ("float32", (0, 5), {"reduction": "mean"}, (), 0),
    "one-word": ("float32", (4, 1), {"reduction": "sum"}, (), 0),
    "mean": ("float32", (2, 9, 17), {"reduction": "mean"}, (), 0),
    "sum": ("bfloat16", (13, 33), {"reduction": "sum"}, (), 0),
    "none": ("float16", (3, 4, 9), {"reduction": "none"}, (), 0),
    "ignored": ("float32", (17, 9), {"reduction": "mean"}, ("ignored",), 0),
    "ignored-rows-of-nan": ("float32", (9, 7), {"reduction": "none"}, ("ignored", "nan"), 0),
    "ignore-a-class": ("bfloat16", (17, 5), {"reduction": "mean", "ignore_index": 0}, (), 0),
    "all-ignored": ("float32", (3, 7), {"reduction": "mean"}, ("all ignored",), 0),
    "weights": ("float32", (11, 7), {"reduction": "mean"}, ("weights",), 0),
    "weights-below-one": ("float32", (11, 7), {"reduction": "mean"}, ("small weights",), 0),
    "weights-ignored": ("float64", (11, 7), {"reduction": "mean", "label_smoothing": 0.125}, ("weights", "ignored"), 0),
    "label-smoothing": ("float32", (5, 17), {"reduction": "none", "label_smoothing": 0.1}, (), 0),
    "label-smoothing-of-one": ("bfloat16", (5, 17), {"reduction": "mean", "label_smoothing": 1.0}, (), 0),
    "z-loss": ("float32", (5, 17), {"reduction": "mean", "z_loss": 1e-4}, (), 0),
    "everything": ("float32", (2, 7, 33), {"reduction": "mean", "label_smoothing": 0.1, "z_loss": 0.25}, ("weights", "ignored"), 0),
    "leading-targets": ("float64", (7, 17), {"reduction": "none"}, ("leading",), 0),
    "forbidden-classes": ("float32", (6, 17), {"reduction": "none"}, ("forbidden",), 0),
    "equal": ("bfloat16", (3, 6), {"reduction": "none"}, ("equal",), 0),
    "far-apart": ("float32", (5, 65), {"reduction": "mean"}, (), 6),
    "huge": ("float64", (3, 5), {"reduction": "none"}, (), 30),
    "subnormal": ("float16", (3, 9), {"reduction": "sum"}, (), -20),
    "vocabulary": ("bfloat16", (2, 4099), {"reduction": "mean", "label_smoothing": 0.1}, (), 0),
}  # fmt: skip

# name: (format, shards, shape of one shard, options, whether some targets are ignored, exponent of the logits)
SHARDED: dict[str, tuple[str, int, tuple[int, ...], dict[str, Any], bool, int]] = {
    "smallest": ("float64", 1, (1,), {"reduction": "sum"}, False, 0),
    "one-class-each": ("float32", 3, (5, 1), {"reduction": "none"}, False, 0),
    "no-rows": ("float32", 2, (0, 3), {"reduction": "mean"}, False, 0),
    "one-shard": ("float32", 1, (5, 9), {"reduction": "mean"}, False, 0),
    "two-shards": ("float32", 2, (7, 9), {"reduction": "none"}, False, 0),
    "three-shards": ("bfloat16", 3, (2, 5, 7), {"reduction": "mean"}, False, 0),
    "four-shards": ("float16", 4, (9, 4), {"reduction": "sum"}, False, 0),
    "ignored": ("float32", 2, (17, 5), {"reduction": "mean"}, True, 0),
    "label-smoothing": ("float32", 2, (7, 9), {"reduction": "none", "label_smoothing": 0.1}, False, 0),
    "z-loss": ("float64", 4, (7, 3), {"reduction": "mean", "z_loss": 1e-4}, False, 0),
    "everything": ("bfloat16", 4, (9, 5), {"reduction": "mean", "label_smoothing": 0.125, "z_loss": 0.25}, True, 0),
    "far-apart": ("float32", 3, (6, 11), {"reduction": "none"}, False, 6),
    "vocabulary": ("bfloat16", 8, (2, 512), {"reduction": "mean"}, False, 0),
}  # fmt: skip

# name: (format, shape of logits, options, what is given besides, exponent of the logits)
DISTILLATION: dict[str, tuple[str, tuple[int, ...], dict[str, Any], tuple[str, ...], int]] = {
    "smallest": ("float64", (2,), {"temperature": 1.0, "alpha": 1.0, "divergence": "forward_kl"}, (), 0),
    "no-rows": ("float32", (0, 5), {"temperature": 2.0, "alpha": 0.5, "divergence": "forward_kl"}, (), 0),
    "one-word": ("float32", (3, 1), {"temperature": 2.0, "alpha": 0.5, "divergence": "jsd"}, (), 0),
    "all-ignored": ("float32", (3, 5), {"temperature": 2.0, "alpha": 0.5, "divergence": "reverse_kl"}, ("all ignored",), 0),
    "forward": ("float32", (7, 17), {"temperature": 1.0, "alpha": 1.0, "divergence": "forward_kl"}, (), 0),
    "reverse": ("float32", (7, 17), {"temperature": 1.0, "alpha": 1.0, "divergence": "reverse_kl"}, (), 0),
    "jsd": ("float32", (7, 17), {"temperature": 1.0, "alpha": 1.0, "divergence": "jsd"}, (), 0),
    "forward-temperature": ("bfloat16", (2, 5, 33), {"temperature": 2.0, "alpha": 0.5, "divergence": "forward_kl"}, (), 0),
    "reverse-temperature": ("float16", (9, 33), {"temperature": 0.7, "alpha": 0.3, "divergence": "reverse_kl"}, (), 0),
    "jsd-temperature": ("bfloat16", (9, 33), {"temperature": 4.0, "alpha": 0.9, "divergence": "jsd", "beta": 0.1}, (), 0),
    "jsd-beta-0": ("float32", (5, 9), {"temperature": 2.0, "alpha": 0.5, "divergence": "jsd", "beta": 0.0}, (), 0),
    "jsd-beta-1": ("float32", (5, 9), {"temperature": 2.0, "alpha": 0.5, "divergence": "jsd", "beta": 1.0}, (), 0),
    "targets-alone": ("float32", (5, 9), {"temperature": 2.0, "alpha": 0.0, "divergence": "forward_kl"}, (), 0),
    "ignored": ("float64", (13, 9), {"temperature": 2.0, "alpha": 0.5, "divergence": "forward_kl"}, ("ignored",), 0),
    "student-as-teacher": ("float32", (5, 9), {"temperature": 3.0, "alpha": 1.0, "divergence": "forward_kl"}, ("same",), 0),
    "student-near-teacher": ("float64", (5, 9), {"temperature": 1.0, "alpha": 1.0, "divergence": "jsd"}, ("near",), 0),
    "far-apart": ("float32", (4, 17), {"temperature": 1.0, "alpha": 0.5, "divergence": "forward_kl"}, (), 5),
    "vocabulary": ("bfloat16", (2, 4099), {"temperature": 2.0, "alpha": 0.5, "divergence": "jsd"}, (), 0),
}  # fmt: skip


def cross_entropy_cases() -> list[Case]:
    """The cases of `CROSS_ENTROPY`."""
    return [Case("cross_entropy", _scored(f"loss {name}", dtype, shape, given, exponent, options.get("ignore_index", -100)), options,
                 origin=name) for name, (dtype, shape, options, given, exponent) in CROSS_ENTROPY.items()]  # fmt: skip


def cross_entropy_backward_cases() -> list[Case]:
    """The same rows with a gradient of the loss: one number, or one a row where nothing is reduced."""
    cases = []
    for case in cross_entropy_cases():
        dtype, shape = CROSS_ENTROPY[case.origin][0], case.arrays["targets"].shape if case.options["reduction"] == "none" else ()
        dloss = draws.normal(f"loss {case.origin} dloss", shape, dtype)
        arrays = {name: case.arrays[name] for name in ("logits", "targets")} | {"dloss": dloss}
        rest = {name: array for name, array in case.arrays.items() if name not in arrays}
        cases.append(Case("cross_entropy_backward", {**arrays, **rest}, case.options, origin=case.origin))
    return cases


def vocab_parallel_cross_entropy_cases() -> list[Case]:
    """The cases of `SHARDED`."""
    cases = []
    for name, (dtype, R, shape, options, ignored, exponent) in SHARDED.items():
        targets = _targets(f"sharded {name}", shape[:-1], R * shape[-1], ("ignored",) if ignored else ())
        shards = draws.normal(f"sharded {name} shards", (R, *shape), dtype, exponent=exponent)
        cases.append(Case("vocab_parallel_cross_entropy", {"shards": shards, "targets": targets}, options, origin=name))
    return cases


def distillation_loss_cases() -> list[Case]:
    """The cases of `DISTILLATION`."""
    cases = []
    for name, (dtype, shape, options, given, exponent) in DISTILLATION.items():
        student, teacher = (draws.normal(f"distil {name} {side}", shape, dtype, exponent=exponent) for side in ("student", "teacher"))
        if "same" in given:
            student = teacher.copy()
        if "near" in given:                                                     # a divergence near 1e-12
            student = teacher + np.ldexp(student, -20)
        targets = _targets(f"distil {name}", shape[:-1], shape[-1], given)
        cases.append(Case("distillation_loss", {"student": student, "teacher": teacher, "targets": targets}, options, origin=name))
    return cases


def distillation_loss_backward_cases() -> list[Case]:
    """The same rows with a gradient of the loss, one number."""
    return [Case("distillation_loss_backward", {**case.arrays, "dloss": draws.normal(f"distil {case.origin} dloss", (), "float32")},
                 case.options, origin=case.origin) for case in distillation_loss_cases()]  # fmt: skip


def _scored(key: str, dtype: str, shape: tuple[int, ...], given: tuple[str, ...], exponent: int, ignore_index: int) -> dict[str, Array]:
    """Logits, targets, and class weights where they are asked for."""
    z, y = draws.normal(f"{key} logits", shape, dtype, exponent=exponent), _targets(key, shape[:-1], shape[-1], given)
    is_target = np.arange(shape[-1]) == y[..., None]
    if "leading" in given:                                                      # the target 40 above the others: a loss near e^-40
        z = z + 40.0 * is_target
    if "equal" in given:
        z = np.repeat(z[..., :1], shape[-1], axis=-1)
    if "forbidden" in given:                                                    # -inf is a class of probability 0, here never the target
        hidden = (draws.whole(f"{key} hidden", shape, 0, 3) == 0) & ~is_target
        z = np.where(hidden, np.asarray(-np.inf, z.dtype), z)
    if "nan" in given:                                                          # what an ignored row holds does not matter
        z = np.where((y == ignore_index)[..., None], np.asarray(np.nan, z.dtype), z)
    arrays = {"logits": z, "targets": y}
    if "weights" in given:                                                      # the first class weighs nothing
        arrays["weights"] = np.asarray(np.ldexp(np.arange(shape[-1]), -2), dtype=np.float32)
    if "small weights" in given:                                                # of all rows together less than 1
        arrays["weights"] = np.asarray(np.ldexp(1.0 + np.arange(shape[-1]), -8), dtype=np.float32)
    return arrays


def _targets(key: str, shape: tuple[int, ...], V: int, given: tuple[str, ...]) -> Array:
    y = draws.whole(f"{key} targets", shape, 0, V)
    if "ignored" in given:
        y = np.where(draws.whole(f"{key} ignored", shape, 0, 3) == 0, -100, y)
    return np.full(shape, -100, dtype=np.int64) if "all ignored" in given else y
