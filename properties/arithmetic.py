"""Arithmetic: what a subject declares about its rounding, and the named presets. Bounds are derived from this alone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from oracles.reference import FloatFormat


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The roundings a kernel may make. Formats are `FloatFormat` names; None takes what the input dtype implies.

    out             format of outputs and gradients; None: the input's
    accumulate      format in which dot products, row sums and P V are accumulated, in any order, fused or not
    elementwise     format of exp, scaling, subtraction, rescaling, tanh
    probabilities   format to which P (and dS) are rounded before they enter a matrix product; None: `elementwise`
    scores          format in which scores are stored before the softmax; None: `accumulate`
    lse             format of the returned log-sum-exp; None: float64 for float64 inputs, else float32
    gradient        format in which partial gradients are kept between blocks; None: `accumulate`
    moments         format of the moments that an optimizer is given and returns; None: `out`
    phases          format in which rotary embedding computes frequencies, angles, sines and cosines; None: `elementwise`
    gradient_blocks how many partial gradients of that format are added at most (matters only with `gradient`)
    projected       format in which latent attention stores what it makes with w_uk and w_uv: keys and values, or the queries and
                    sums of the absorbed form; None: `accumulate`
    absorbed        latent attention takes w_uk to the queries and w_uv behind the sum instead of building keys and values
    row_sum_rounded the softmax's denominator sums the *rounded* probabilities
    truncating      accumulation may truncate instead of rounding to nearest, as tensor cores do
    scaled_q        q is multiplied by scale and rounded to its own format before the product
    merges_lse      partial results over disjoint keys are merged through their log-sum-exp (split-K, ring); a softmax is e^(x - lse)
    recomputes      a backward pass recomputes out and lse itself instead of reading those handed in
    flush_to_zero   subnormal results may become zero
    exp_ulps, log_ulps, tanh_ulps   largest error of the function, in units of `elementwise` roundoff of its value
    trig_ulps       the same of sine and cosine, in units of `phases` roundoff
    tile_min        smallest number of keys between two rescalings of the accumulator (online softmax)

    >>> Arithmetic().resolve("bfloat16").out
    'bfloat16'
    >>> Arithmetic.preset("flash_gpu").resolve("bfloat16").probabilities
    'bfloat16'

    A format may also be "input": the format of the input arrays. Raises ValueError for an unknown format or preset.
    """

    out: str | None = None
    accumulate: str | None = None
    elementwise: str | None = None
    probabilities: str | None = None
    scores: str | None = None
    lse: str | None = None
    gradient: str | None = None
    moments: str | None = None
    phases: str | None = None
    gradient_blocks: int = 1
    projected: str | None = None
    absorbed: bool = False
    row_sum_rounded: bool = False
    truncating: bool = False
    scaled_q: bool = False
    merges_lse: bool = False
    recomputes: bool = False
    flush_to_zero: bool = False
    exp_ulps: float = 4.0
    log_ulps: float = 4.0
    tanh_ulps: float = 4.0
    trig_ulps: float = 4.0
    tile_min: int = 16

    def __post_init__(self) -> None:
        for name in FORMAT_FIELDS:
            value = getattr(self, name)
            if value not in (None, "input"):
                try:
                    FloatFormat(value)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        for name in ("exp_ulps", "log_ulps", "tanh_ulps", "trig_ulps", "tile_min", "gradient_blocks"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}; want a positive number")

    def resolve(self, dtype: str) -> ResolvedArithmetic:
        """What these declarations mean for inputs of format `dtype`: every format named."""
        wide = "float64" if dtype == "float64" else "float32"
        chosen: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in FORMAT_FIELDS:
            chosen[name] = dtype if chosen[name] == "input" else chosen[name]
        chosen["out"] = chosen["out"] or dtype
        for name in ("accumulate", "elementwise", "lse"):
            chosen[name] = chosen[name] or wide
        chosen["probabilities"] = chosen["probabilities"] or chosen["elementwise"]
        chosen["scores"] = chosen["scores"] or chosen["accumulate"]
        chosen["gradient"] = chosen["gradient"] or chosen["accumulate"]
        chosen["projected"] = chosen["projected"] or chosen["accumulate"]
        chosen["moments"] = chosen["moments"] or chosen["out"]
        chosen["phases"] = chosen["phases"] or chosen["elementwise"]
        return ResolvedArithmetic(inputs=dtype, **chosen)

    @classmethod
    def preset(cls, name: str) -> Arithmetic:
        """A named arithmetic; the names are the keys of `PRESETS`."""
        if name not in PRESETS:
            raise ValueError(f"arithmetic: got {name!r}; want an Arithmetic or one of {', '.join(PRESETS)}")
        return PRESETS[name]


@dataclass(frozen=True, kw_only=True)
class ResolvedArithmetic:
    """`Arithmetic` for one input format: the fields of `Arithmetic`, with no format left open, and `inputs`."""

    inputs: str
    out: str
    accumulate: str
    elementwise: str
    probabilities: str
    scores: str
    lse: str
    gradient: str
    moments: str
    phases: str
    gradient_blocks: int
    projected: str
    absorbed: bool
    row_sum_rounded: bool
    truncating: bool
    scaled_q: bool
    merges_lse: bool
    recomputes: bool
    flush_to_zero: bool
    exp_ulps: float
    log_ulps: float
    tanh_ulps: float
    trig_ulps: float
    tile_min: int

    def widened(self) -> ResolvedArithmetic:
        """The arithmetic of an oracle run on the same inputs: float64 throughout, nothing stored in less."""
        return replace(Arithmetic().resolve("float64"), inputs=self.inputs)


FORMAT_FIELDS = ("out", "accumulate", "elementwise", "probabilities", "scores", "lse", "gradient", "moments", "phases", "projected")

PRESETS: dict[str, Arithmetic] = {
    # What holds when nothing is declared: float32 inside (float64 for float64), output in the input's format.
    "default": Arithmetic(),
    # FlashAttention on tensor cores (Dao 2023, arXiv 2307.08691): P rounded to the input format, truncating float32 accumulation.
    "flash_gpu": Arithmetic(probabilities="input", truncating=True, flush_to_zero=True),
    # One framework operation after another, each storing its result in the input format.
    "eager": Arithmetic(scores="input", probabilities="input", row_sum_rounded=False, recomputes=True),
}
