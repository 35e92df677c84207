"""A small student taught by a teacher: one linear layer, trained by gradient descent on the distillation loss until it has what it can."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .distillation import distillation_loss, distillation_loss_backward


def distilled_student(
    x: ArrayLike, teacher: ArrayLike, targets: ArrayLike, *, steps: int, temperature: float, alpha: float = 1.0
) -> tuple[Float64, Float64]:
    """The weights of logits x w after so many steps from w = 0, and the loss before each step and after the last.

        f(w) = alpha T^2 mean KL(teacher, x w) + (1 - alpha) mean cross-entropy(x w),      w <- w - x^T dz / L
        L = lambda_max(x^T x) / (2 n)

    x (n, C), teacher (n, V) logits, targets (n,); returns w (C, V) and losses (steps + 1,). The divergence is the forward one, which
    is convex in w, and its second derivative is at most L: a softmax's diag(p) - p p^T is at most 1 / 2, and T^2 undoes both 1 / T
    (Boehning 1992, doi 10.1007/BF00048682). So, in real arithmetic,

        f(w') <= f(w) - |x^T dz|^2 / (2 L)                   no step makes it worse
        f(w_k) - f(w*) <= L |w*|^2 / (2 k)   for every w*    k steps are enough for any goal

    and with alpha = 1 and a teacher x w*, f(w*) = 0: the student's cross-entropy with the teacher comes down to the teacher's entropy.
    Raises as `distillation_loss`; ValueError for x of nothing but zeros.
    Source: Hinton, Vinyals and Dean 2015 (arXiv 1503.02531), section 2; the rate: Nesterov 2018, Lectures on Convex Optimization,
    theorem 2.1.14 and its corollary.

    >>> x, taught = np.eye(2), np.log([[0.9, 0.1], [0.2, 0.8]])
    >>> w, losses = distilled_student(x, taught, [0, 1], steps=200, temperature=1.0)
    >>> losses[[0, 1, 200]].round(4).tolist()
    [0.2804, 0.0108, 0.0]
    """
    x = arguments.widen("x", x, ndim=2)
    t = arguments.widen("teacher", teacher, ndim=2)
    if t.shape[0] != x.shape[0]:
        raise ValueError(f"teacher: got {t.shape[0]} rows beside {x.shape[0]} of x; want as many")
    n, steps = x.shape[0], arguments.whole_number("steps", steps, least=0)
    L = float(np.linalg.norm(x, 2)) ** 2 / (2 * n) if x.size else 0.0
    if not L > 0.0:
        raise ValueError(f"x: got shape {x.shape} with nothing but zeros; want inputs to learn from")
    options: dict[str, Any] = {"temperature": temperature, "alpha": alpha, "divergence": "forward_kl"}
    w, losses = np.zeros((x.shape[1], t.shape[1])), np.empty(steps + 1)
    for k in range(steps):
        losses[k] = distillation_loss(x @ w, t, targets, **options)
        w = w - x.T @ distillation_loss_backward(x @ w, t, targets, 1.0, **options) / L
    losses[steps] = distillation_loss(x @ w, t, targets, **options)
    return w, losses
