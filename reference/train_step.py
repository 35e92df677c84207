"""One step of training the decoder: the loss, its gradient, the clip and AdamW. One rank; many ranks are parallel_decoder's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Float64
from .losses import cross_entropy
from .losses_backward import cross_entropy_backward
from .optimizers import adamw_step, clip_grad_norm
from .transformer import Decoder, Weights
from .transformer_backward import DecoderPass, transformer_pass

Named = dict[str, Float64]


class Trained(NamedTuple):
    """What a step gives: the loss and the norm of the gradient before it was clipped, then the new weights and moments."""

    loss: Float64
    norm: Float64
    weights: Named
    m: Named
    v: Named


def decoder_loss(tokens: ArrayLike, targets: ArrayLike, weights: Weights, decoder: Decoder, *, balance: float = 0.0,
                 ignore_index: int = -100) -> Float64:
    """The loss that training lowers: float64 ().

        cross_entropy(transformer_forward(tokens), targets, mean) + balance * sum over layers of their balance loss

    tokens and targets (B, T). The mean is over the targets that are not ignored, the balance over all tokens.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1)
    >>> weights = {name: np.zeros(shape) for name, shape in sizes.shapes().items()}
    >>> float(decoder_loss([[0, 1]], [[1, 2]], weights, sizes).round(6))
    1.098612

    Raises as `transformer_forward` and `cross_entropy`. Error bound: `properties.bounds.decoder_bound`. Source: as those.
    """
    return _loss(transformer_pass(tokens, weights, decoder), targets, balance, ignore_index)


def _loss(passed: DecoderPass, targets: ArrayLike, balance: float, ignore_index: int) -> Float64:
    loss = cross_entropy(passed.logits, targets, ignore_index=ignore_index, reduction="mean")
    return np.asarray(loss + balance * np.sum(passed.balances) if balance and passed.balances else loss)


def decoder_gradients(tokens: ArrayLike, targets: ArrayLike, weights: Weights, decoder: Decoder, *, balance: float = 0.0,
                      ignore_index: int = -100) -> tuple[Float64, Named]:
    """`decoder_loss` and its gradients with respect to all weights.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1)
    >>> weights = {name: np.zeros(shape) for name, shape in sizes.shapes().items()}
    >>> loss, gradients = decoder_gradients([[0, 1]], [[1, 2]], weights, sizes)
    >>> bool(gradients["head"].any()), gradients["embedding"].shape
    (False, (3, 2))

    Raises, error bound and source as `decoder_loss` and `transformer_backward`.
    """
    passed = transformer_pass(tokens, weights, decoder, balance=balance)
    dlogits = cross_entropy_backward(passed.logits, targets, np.float64(1.0), ignore_index=ignore_index, reduction="mean")
    return _loss(passed, targets, balance, ignore_index), passed.back(dlogits)


def train_step(
    tokens: ArrayLike, targets: ArrayLike, weights: Weights, m: Mapping[str, ArrayLike], v: Mapping[str, ArrayLike], decoder: Decoder, *,
    step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, max_norm: float, balance: float = 0.0,
    ignore_index: int = -100,
) -> Trained:  # fmt: skip
    """One step on one batch: the loss before it, the norm of its gradient, and the new weights and moments.

        g = gradient of decoder_loss,   g = clip_grad_norm(g) over all weights together
        weights, m, v = adamw_step(weights, g, m, v)    vectors, which are norms, are not decayed

    m and v: names and shapes of the weights, zeros before step 1.

    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1)
    >>> weights = {name: np.ones(shape) for name, shape in sizes.shapes().items()}
    >>> zeros = {name: np.zeros(shape) for name, shape in sizes.shapes().items()}
    >>> after = train_step([[0]], [[1]], weights, zeros, zeros, sizes, step=1, lr=0.5, beta1=0.9, beta2=0.99, eps=1e-8,
    ...                    weight_decay=0.0, max_norm=1.0)
    >>> bool(decoder_loss([[0]], [[1]], after.weights, sizes) < after.loss)
    True

    Raises as its parts. Error bound: of the gradient that of `decoder_gradients`; AdamW divides it by its own size, so that
    where it is nearly 0 its sign, and with it a step of lr, is open.
    Source: as its parts; no decay of vectors: Radford et al. 2019's code, and most since.
    """
    loss, g = decoder_gradients(tokens, targets, weights, decoder, balance=balance, ignore_index=ignore_index)
    clipped, norm = clip_grad_norm(list(g.values()), max_norm=max_norm)
    w, new_m, new_v = {}, {}, {}
    for name, gradient in zip(g, clipped):
        w[name], new_m[name], new_v[name] = adamw_step(
            np.asarray(weights[name]), gradient, m[name], v[name], step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
            weight_decay=weight_decay if gradient.ndim > 1 else 0.0)
    return Trained(loss, norm, w, new_m, new_v)
