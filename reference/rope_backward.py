"""The gradient of rotary position embedding: the same turn backwards."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .rope import Pairing, rope
from .rope_scaling import Scaling


def rope_backward(dout: ArrayLike, positions: ArrayLike, *, pairing: Pairing, base: float = 10000.0, rotary_dim: int | None = None,
                  scaling: Scaling = None) -> Float64:
    """The gradient of sum(dout * rope(x)) with respect to x: float64, the shape of dout.

        (dx_a, dx_b) = m (da cos t + db sin t,  -da sin t + db cos t)

    the transposed turn, which is the turn by -t with the same m: `rope` at the negative positions. It depends on dout alone.

    >>> rope_backward(rope([1.0, 2.0], 3, pairing="half"), 3, pairing="half").round(12)
    array([1., 2.])

    Raises as `rope`. Error bound: that of `rope`. Source: Su et al. 2021 (arXiv 2104.09864), equation 34, transposed.
    """
    back = -arguments.integers("positions", positions, least=-(2**53), most=2**53)
    return rope(dout, np.asarray(back), pairing=pairing, base=base, rotary_dim=rotary_dim, scaling=scaling)
