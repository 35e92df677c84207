"""Scaling: training compute, the laws of Kaplan and Chinchilla, tokens and words, idle pipelines, what ZeRO moves."""

from __future__ import annotations

from fractions import Fraction

from . import arguments

KAPLAN_EXPONENTS = {"N": 0.076, "D": 0.095, "C": 0.050}
TOKENS_PER_PARAMETER = 20
WORDS_PER_TOKEN = 0.75


def training_flops(parameters: float, tokens: float) -> float:
    """C = 6 N D: two FLOPs for each parameter and token forward, four backward; attention's quadratic part left out.

    >>> training_flops(8e9, 15e12)
    7.2e+23

    Raises ValueError for numbers not above 0. Source: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1.
    """
    return 6.0 * arguments.real_number("parameters", parameters, positive=True) * arguments.real_number("tokens", tokens, positive=True)


def chinchilla_loss(parameters: float, tokens: float) -> float:
    """The fitted loss, in nats a token: L = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28.

    >>> round(chinchilla_loss(70e9, 1.4e12), 3)
    1.937

    Raises ValueError for numbers not above 0. Source: Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, equation 10; Besiroglu et al.
    2024 (arXiv 2404.10102) found that fit not to reproduce its own intervals.
    """
    N, D = arguments.real_number("parameters", parameters, positive=True), arguments.real_number("tokens", tokens, positive=True)
    return float(1.69 + 406.4 / N**0.34 + 410.7 / D**0.28)


def chinchilla_tokens(parameters: float) -> float:
    """The rule of thumb D = 20 N. Raises ValueError for a number not above 0.

    >>> chinchilla_tokens(70e9) == 1.4e12
    True
    """
    return TOKENS_PER_PARAMETER * arguments.real_number("parameters", parameters, positive=True)


def chinchilla_split(flops: float) -> tuple[float, float]:
    """Parameters and tokens that spend so many FLOPs with D = 20 N and C = 6 N D: N = sqrt(C / 120), D = 20 N.

    >>> N, D = chinchilla_split(120e18)
    >>> N, D
    (1000000000.0, 20000000000.0)

    Raises ValueError for a number not above 0. Source: as `chinchilla_loss`.
    """
    N = float((arguments.real_number("flops", flops, positive=True) / (6.0 * TOKENS_PER_PARAMETER)) ** 0.5)
    return N, TOKENS_PER_PARAMETER * N


def kaplan_ratio(factor: float, variable: str) -> float:
    """By what the loss of a model short of nothing else is multiplied when N, D or C grows by a factor: factor^-alpha.

    >>> round(kaplan_ratio(10.0, "N"), 3)
    0.839

    Raises ValueError for another variable and a factor not above 0. Source: Kaplan et al. 2020 (arXiv 2001.08361), equations 1.1 to 1.3.
    """
    if variable not in KAPLAN_EXPONENTS:
        raise ValueError(f"variable: got {variable!r}; want N, D or C")
    return float(arguments.real_number("factor", factor, positive=True) ** -KAPLAN_EXPONENTS[variable])


def words(tokens: float) -> float:
    """English words in so many tokens, at about 0.75 a token. A rule of thumb of one vocabulary: code and other languages differ.

    >>> words(15e12)
    11250000000000.0
    """
    return WORDS_PER_TOKEN * arguments.real_number("tokens", tokens)


def pipeline_bubble(stages: int, microbatches: int) -> Fraction:
    """The share of the time in which a stage is idle under GPipe and 1F1B, forward and backward alike: (p - 1) / (m + p - 1).

    >>> pipeline_bubble(4, 8)
    Fraction(3, 11)

    Raises ValueError for numbers below 1. Exact. Some papers divide by m instead, idle time over useful time: (p - 1) / m.
    Source: Huang et al. 2019 (arXiv 1811.06965), section 2.3; Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
    """
    p, m = arguments.whole_number("stages", stages, least=1), arguments.whole_number("microbatches", microbatches, least=1)
    return Fraction(p - 1, m + p - 1)


def zero_traffic(parameters: int, *, stage: int, world: int) -> Fraction:
    """Elements that each rank sends in one step, P parameters filled up to equal parts: 2 P (R - 1) / R, at stage 3 half as much again.

    >>> zero_traffic(1000, stage=2, world=4), zero_traffic(1000, stage=3, world=4)
    (Fraction(1500, 1), Fraction(2250, 1))

    Raises ValueError for a stage outside 0..3. Exact. Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 7.
    """
    P, R = arguments.whole_number("parameters", parameters, least=0), arguments.whole_number("world", world, least=1)
    stage = arguments.whole_number("stage", stage, least=0)
    if stage > 3:
        raise ValueError(f"stage: got {stage}; want 0, 1, 2 or 3")
    return Fraction((3 if stage == 3 else 2) * -(-P // R) * R * (R - 1), R)
