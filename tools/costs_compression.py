"""Published figures of compression: what 8 bits cost with one scale and with one a row, and what pruning does to small layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from oracles import reference

from .published_figure import EXERCISE, FORMULA, QUOTED, Figure, told

# W[0, 0], one scale, largest error of a weight, relative error of the product
INT8 = (
    (None, "per tensor", "0.00090", "0.01032"), (None, "per row", "0.00090", "0.00687"),
    (5.0, "per tensor", "0.01968", "0.21665"), (5.0, "per row", "0.01964", "0.01491"),
)  # fmt: skip


def drawn_weights() -> tuple[Any, Any]:
    """W (256, 256), times 0.05, and x (256, 64), in this order from PyTorch's generator with seed 0, in float32."""
    stream = reference.TorchStream(0)
    return stream.randn(256, 256) * np.float32(0.05), stream.randn(256, 64)


def int8_quantization() -> Iterator[Figure]:
    section = "int8 quantization"
    drawn, x = drawn_weights()
    for corner, form, of_weights, of_product in INT8:
        w = drawn.copy()
        if corner is not None:
            w[0, 0] = corner
        errors = reference.quantization_errors(w, x, axis=0 if form == "per row" else None)
        what = f"W {'as drawn' if corner is None else f'with W[0,0] = {corner}'}, one scale {form}"
        for name, said, error in zip(("largest error of a weight", "relative error of W x"), (of_weights, of_product), errors):
            yield Figure(section, f"{what}: {name}", said, f"{error:.5f}")
    for bits, high in ((8, 127), (4, 7)):
        q, scale, _ = reference.quantize(drawn, bits=bits)
        wide = drawn.astype(np.float64)
        rule = bool(scale[0] == np.abs(wide).max() / high and (q == np.clip(np.rint(wide / scale), -high, high)).all())
        yield Figure(section, f"scale and codes of int{bits}", f"max|w| / {high}, halves to even, within +-{high}", told(rule), FORMULA)


# Pruning -----------------------------------------------------------------------------------------------------------------

SHAPES = ((64, 2), (64, 64), (2, 64))                                           # of a 2-64-64-2 classifier, biases left alone
SPARSITIES = (0.5, 0.8, 0.9, 0.95)
# what, said; the run behind them is one training by PyTorch
OBSERVED = (
    ("accuracy before pruning", "0.9900"), ("50 %: what it costs, global and per layer", "nothing"),
    ("80 % global, before and after tuning", "0.9620, 0.9840"), ("80 % per layer, before and after tuning", "0.7230, 0.9890"),
    ("90 % global, before and after tuning", "0.5000, 0.5000"), ("90 % per layer, before and after tuning", "0.6020, 0.8660"),
    ("90 % global: what stays of the output layer", "0 %"), ("95 % global", "0.5000"),
    ("95 % per layer, before and after tuning", "0.7540, 0.8880"),
)  # fmt: skip


def drawn_layers() -> list[Any]:
    """Normal numbers in the shapes of the classifier, from PyTorch's generator with seed 0."""
    stream = reference.TorchStream(0)
    return [stream.randn(*shape) for shape in SHAPES]


def pruning() -> Iterator[Figure]:
    section, layers = "pruning", drawn_layers()
    yield Figure(section, "prunable weights of a 2-64-64-2 classifier", "4,352", f"{sum(w.size for w in layers):,}")
    flat = np.abs(np.concatenate([w.ravel() for w in layers])).astype(np.float64)
    by_rule, emptied = True, False
    for sparsity in SPARSITIES:
        masks = {scope: reference.prune_magnitude(layers, sparsity=sparsity, scope=scope, rule="quantile") for scope in ("global", "layer")}
        kept = np.concatenate([mask.ravel() for mask in masks["global"]])
        by_rule &= bool((kept == (flat > np.quantile(flat, sparsity))).all())
        emptied |= not all(mask.any() for mask in masks["layer"])
    yield Figure(section, "what stays at 50, 80, 90, 95 %", "|w| > its linear quantile", told(by_rule), FORMULA)
    yield Figure(section, "layers pruned each by itself", "never empty", told(not emptied), FORMULA,
                 "a law where all magnitudes differ, two of them or more: the largest is above every quantile below 1")
    small = [*layers[:2], layers[2] * np.float32(2.0**-10)]
    left = [bool(mask.any()) for mask in reference.prune_magnitude(small, sparsity=0.9, scope="global", rule="quantile")]
    yield Figure(section, "an output layer smaller than all else, 90 % global", "0 % stay", told(left == [True, True, False]), FORMULA,
                 "no law of pruning by itself: 435 of the other 4,224 weights have to be larger")
    unsaid = "one training run, whose settings the figures do not give; docs/costs.md has 24 runs with settings of ours"
    yield from (Figure(section, what, said, "", QUOTED, unsaid) for what, said in OBSERVED)
    fewest = min(int(mask[1].sum()) for mask in hidden_alone(layers))
    least = min(int(mask[0].sum()) for mask in hidden_alone(layers))
    yield Figure(section, "the two hidden layers alone, 90 % global: the fewest that may stay of 128, of 4,096, of the output's 128", "",
                 f"{least}, {fewest}, 128", EXERCISE, "the collapse moves to the first layer: the second is too large to be emptied")
    w, _ = drawn_weights()
    zeros = (~reference.prune_2_4(w, axis=-1)).reshape(256, 64, 4).sum(axis=-1)
    yield Figure(section, "2:4, zeros in every four weights", "2", f"{int(zeros.min())}" if (zeros == zeros.min()).all() else "uneven")


def hidden_alone(layers: list[Any]) -> list[list[Any]]:
    """Masks of the first two layers at 90 % over both, with the one and then the other far larger."""
    return [reference.prune_magnitude([layers[0] * np.float32(scale), layers[1]], sparsity=0.9, scope="global", rule="count")
            for scale in (2.0**-20, 2.0**20)]
