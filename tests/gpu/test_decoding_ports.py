"""The ports of the decoding family: long rows, the exact law of the verification kernel itself, the same bits, and bad input refused.

ORACLES_BACKEND=cuda runs those tests on a device that do not change a kernel. Orders of threads, races and barriers: test_dropped_barriers.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.gpu.kernel import KERNELS
from oracles.gpu.launching import Backend
from oracles.gpu.sampling import filter_probabilities, sample
from oracles.gpu.speculative import speculative_verify
from oracles.properties import Arithmetic, bounds, check
from oracles.properties.conventions import declared

pytestmark = pytest.mark.gpu

BACKEND = os.environ.get("ORACLES_BACKEND", "emulated")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LONG = 5000                                                                     # 8 warps, each with a share that is no multiple of 32


def sixteenths(*shape: int, seed: int = 0) -> Any:
    """Distributions in multiples of 1/16 over a long vocabulary: sums, ratios and draws are exact."""
    generator = np.random.default_rng(seed)
    rows = [np.bincount(generator.integers(0, shape[-1], 16), minlength=shape[-1]) for _ in range(int(np.prod(shape[:-1])))]
    return (np.array(rows) / 16.0).reshape(shape)


# Filters ---------------------------------------------------------------------------------------------------------------------

FILTERS: list[dict[str, Any]] = [
    {}, {"temperature": 0.3}, {"top_k": 1}, {"top_k": 50}, {"top_k": [1, 4999, 2**62]}, {"top_p": 0.9}, {"min_p": 0.05},
    {"temperature": [0.0, 0.7, 2.0], "top_k": [9, 300, 5000], "top_p": [0.5, 0.9, 1.0], "min_p": [0.9, 0.01, 0.0]},
]  # fmt: skip


@pytest.mark.parametrize("options", FILTERS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_are_filtered_within_their_bound(dtype: str, options: dict[str, Any]) -> None:
    z = np.random.default_rng(1).permuted(np.tile(np.linspace(-14, 6, LONG), (3, 1)), axis=1)
    z = (np.rint(z * 64) / 64).astype(DTYPES[dtype])                            # 4 equal logits at a time, more in 16 bits
    got = filter_probabilities(z, **options, backend=BACKEND)
    exact = reference.filter_probabilities(z, **options)
    contract = declared({}, "filter_probabilities")
    bound = bounds.filter_probabilities_bound(Arithmetic().resolve(dtype), z, **options, conventions=contract)["probabilities"]
    assert got.dtype == DTYPES[dtype]
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()
    if "top_p" not in options and "min_p" not in options:                       # ranks alone: no rounding opens a decision
        assert np.isfinite(bound).all()


@pytest.mark.parametrize("V", [2, 64, 1024, LONG])
def test_equal_logits_keep_the_first_of_them(V: int) -> None:
    half = filter_probabilities(np.zeros(V, np.float32), top_p=0.5, backend=BACKEND)
    np.testing.assert_array_equal(np.flatnonzero(half), np.arange(V // 2))
    some = filter_probabilities(np.zeros(V, np.float32), top_k=V // 2 + 1, backend=BACKEND)
    np.testing.assert_array_equal(np.flatnonzero(some), np.arange(V // 2 + 1))


def test_zeros_of_both_signs_are_equal() -> None:
    np.testing.assert_array_equal(filter_probabilities(np.array([-0.0, 0.0], np.float32), top_k=1, backend=BACKEND), [1.0, 0.0])


def test_the_least_temperature_takes_the_largest() -> None:
    z = np.array([0.0, 1.0, -np.inf], np.float32)
    np.testing.assert_array_equal(filter_probabilities(z, temperature=5e-324, backend=BACKEND), [0.0, 1.0, 0.0])


# Draws -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_from_long_rows_are_exact_where_sums_are(dtype: str) -> None:
    p = sixteenths(40, LONG)
    u = np.arange(40) % 16 / 16                                                 # each edge between two tokens
    np.testing.assert_array_equal(sample(p.astype(DTYPES[dtype]), u, backend=BACKEND), reference.sample(p, u))


@pytest.mark.parametrize("size", [1e-38, 1.0, 3e38])
def test_weights_of_any_size_are_drawn_from(size: float) -> None:
    p = np.array([[0.0, size, 0.0, size / 2]], np.float32)
    drawn = [int(sample(p, np.array([u], np.float32), backend=BACKEND)[0]) for u in (0.0, 0.66, 0.67, 1 - 2**-24)]
    assert drawn == [1, 1, 3, 3]


def test_rows_of_more_axes_keep_their_shape() -> None:
    assert sample(sixteenths(2, 3, 9).astype(np.float32), np.zeros((2, 3)), backend=BACKEND).shape == (2, 3)


# Verification ----------------------------------------------------------------------------------------------------------------


def verification(B: int, K: int, V: int) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    q, p = sixteenths(B, K, V).astype(np.float32), sixteenths(B, K + 1, V, seed=1).astype(np.float32)
    p[::2, :K] = q[::2]                                                         # half of the drafts go far
    x = q.argmax(axis=-1)
    x[-1, 0] = -1                                                               # ends its draft
    u, last = generator.integers(0, 16, (B, K)) / 16, generator.integers(0, 16, B) / 16
    return {"draft_tokens": x, "draft_probs": q, "target_probs": p, "accept_u": u.astype(np.float32), "sample_u": last.astype(np.float32),
            "draft_lengths": np.arange(B) % (K + 1)}  # fmt: skip


@pytest.mark.parametrize("V", [300, LONG])
def test_verification_of_long_rows_is_the_oracles(V: int) -> None:
    given = verification(12, 3, V)
    for got, want in zip(speculative_verify(**given, backend=BACKEND), reference.speculative_verify(**given)):
        np.testing.assert_array_equal(got, want)


# What the law of the kernel, computed from the kernel itself, has to tell: (what stands there, what it becomes, law that falls).
BROKEN = {
    "the residual not taken": ("fmaxf(p[i] - q[i], 0.f)", "p[i]", "the_law_of_tokens_is_the_targets"),
    "the residual of q": ("fmaxf(p[i] - q[i], 0.f)", "fmaxf(q[i] - p[i], 0.f)", "the_law_of_tokens_is_the_targets"),
    "the ratio the other way": ("* (double)q < (double)p", "* (double)p < (double)q", "the_law_of_tokens_is_the_targets"),
    "no bonus": ("c == j ? token : -1", "c == j && is_rejected ? token : -1", "the_law_of_their_number_is_the_rules"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_law_of_a_broken_kernel_is_told_from_the_targets(fault: str, tmp_path: Path) -> None:
    was, becomes, law = BROKEN[fault]
    for source in KERNELS.iterdir():
        shutil.copy(source, tmp_path)
    text = (KERNELS / "speculative_verify.cu").read_text()
    assert text.count(was) == 1
    (tmp_path / "speculative_verify.cu").write_text(text.replace(was, becomes))

    def broken(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any) -> Any:
        backend = Backend("emulated", kernels=tmp_path)
        return speculative_verify(draft_tokens, draft_probs, target_probs, accept_u, sample_u, backend=backend)

    report = check("speculative_verify", broken, budget=0, laws=(law,), in_process=True, declared={"dtypes": ["float32"]})
    assert [verdict.status for verdict in report.verdicts if verdict.law == law] == ["failed"]


# Refusals --------------------------------------------------------------------------------------------------------------------

ONE, DRAFT = np.ones((2, 4), np.float32), verification(2, 2, 4)
NAN = np.full((2, 3, 4), np.nan, np.float32)
REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = {
    "a row of NaN": (filter_probabilities, {"logits": NAN}, ValueError, "logits: got a row with a NaN"),
    "a row of nothing": (filter_probabilities, {"logits": np.array([-np.inf], np.float32)}, ValueError, "logits: got a row with"),
    "an infinity": (filter_probabilities, {"logits": np.array([np.inf, 0], np.float32)}, ValueError, "logits: got a row with"),
    "a negative temperature": (filter_probabilities, {"logits": ONE, "temperature": -1.0}, ValueError, "temperature: got -1.0"),
    "top_k of none": (filter_probabilities, {"logits": ONE, "top_k": 0}, ValueError, "top_k: got 0; want a whole number >= 1"),
    "top_k of a fraction": (filter_probabilities, {"logits": ONE, "top_k": 1.5}, TypeError, "top_k: got dtype float64; want integers"),
    "top_p of nothing": (filter_probabilities, {"logits": ONE, "top_p": [0.5, 0.0]},
        ValueError, "top_p: got 0.0; want a finite number > 0 and"),
    "min_p beyond one": (filter_probabilities, {"logits": ONE, "min_p": 1.5}, ValueError, "min_p: got 1.5"),
    "parameters of other rows": (filter_probabilities, {"logits": ONE, "top_p": [0.5] * 3}, ValueError, "top_p: got shape (3,)"),
    "integer logits": (filter_probabilities, {"logits": np.ones(3, np.int64)}, TypeError, "logits: got dtype int64"),
    "weights of nothing": (sample, {"probabilities": 0 * ONE, "u": [0.0, 0.0]}, ValueError, "probabilities: got a row with"),
    "a negative weight": (sample, {"probabilities": -ONE, "u": [0.0, 0.0]}, ValueError, "probabilities: got a row with"),
    "a weight that is none": (sample, {"probabilities": NAN[0, :2], "u": [0.0, 0.0]}, ValueError, "probabilities: got a row with"),
    "a uniform of one": (sample, {"probabilities": ONE, "u": [0.0, 1.0]}, ValueError, "u: got numbers outside [0, 1)"),
    "a uniform for nobody": (sample, {"probabilities": ONE, "u": 0.5}, ValueError, "u: got shape (); want (2,)"),
    "a token past the vocabulary": (speculative_verify, DRAFT | {"draft_tokens": [[0, 4]] * 2},
        ValueError, "draft_tokens: got numbers from 0 to 4"),
    "a target of NaN": (speculative_verify, DRAFT | {"target_probs": NAN}, ValueError, "target_probs, draft_probs: got a NaN"),
    "a draft of NaN": (speculative_verify, DRAFT | {"draft_probs": NAN[:, :2], "draft_lengths": [1, 1]}, ValueError, "got a NaN"),
    "a target of zeros": (speculative_verify, DRAFT | {"target_probs": np.zeros((2, 3, 4), np.float32)}, ValueError, "or a row of zeros"),
    "half precision": (speculative_verify, DRAFT | {"target_probs": NAN.astype(np.float16)}, NotImplementedError, "built for float32"),
    "a draft too long": (speculative_verify, DRAFT | {"draft_lengths": [3, 0]}, ValueError, "draft_lengths: got numbers from 0 to 3"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_bad_input_is_refused_by_name(fault: str) -> None:
    port, given, error, message = REFUSED[fault]
    with pytest.raises(error, match=re.escape(message)):
        port(**given, backend=BACKEND)
