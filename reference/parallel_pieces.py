"""Parallel pieces: what one rank of a pipeline stage does of the decoder, on a mesh of dp, ep, cp and tp, forward and backward by hand.

Activations (b, n, E): sequences cut over dp and ep, tokens over cp; over tp the same everywhere, or cut on the tokens too (sp). Each
layer is made of `parallel_layers`, so that an all-reduce that is missing or doubled fails by name. Gradients of weights come as partial
sums over the axes that cut their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arguments import Array, Float64, Int64
from .attention import attention
from .attention_backward import attention_backward
from .collectives import all_reduce
from .context_all_to_all import all_to_all_attention, all_to_all_attention_backward
from .context_parallel import ring_attention, ring_attention_backward
from .decoder_cache import left_window
from .parallel_layers import ColumnLinear, Norm, RowLinear
from .parallel_layout import ParallelLayout
from .placed_arithmetic import added
from .placed_collectives import Ledger, gathered, reduce_scattered, reduced
from .placement import Partial, Placed, Shard, partition, want
from .rope import rope
from .rope_backward import rope_backward
from .sequence_shards import Order, shard_positions
from .swiglu_backward import silu_and_slope
from .transformer import Decoder, join_heads, split_heads

Gradients = dict[str, Placed]
Back = Callable[[Placed], tuple[Placed, Gradients]]
Weights = Mapping[str, Placed]


@dataclass(frozen=True)
class Setting:
    """What all pieces share: sizes, layout, what was sent, and the name of a row layer whose all-reduce is left out, or ""."""

    decoder: Decoder
    layout: ParallelLayout
    ledger: Ledger = field(default_factory=Ledger)
    forget: str = ""

    @property
    def sequence(self) -> int | None:
        """The axis of activations that tp cuts between the layers."""
        return 1 if self.layout.sp else None

    @property
    def order(self) -> Order:
        return "zigzag" if self.layout.context == "zigzag" and self.layout.cp > 1 else "contiguous"

    def positions(self, tokens: int) -> list[Int64]:
        """The places in the sequence of the tokens that each rank of the mesh holds, `tokens` of them."""
        parts, mesh = shard_positions(self.layout.cp, tokens, order=self.order), self.layout.mesh
        return [parts[mesh.coordinate(rank, "cp")] for rank in range(mesh.ranks)]

    def column(self, name: str, w: Placed) -> ColumnLinear:
        return ColumnLinear(name, w, sequence=self.sequence, ledger=self.ledger)

    def row(self, name: str, w: Placed) -> RowLinear:
        return RowLinear(name, w, sequence=self.sequence, ledger=self.ledger, reduces=name != self.forget)


def embed(setting: Setting, table: Placed, tokens: Placed) -> tuple[Placed, Callable[[Placed], Placed]]:
    """Rows of a table whose vocabulary tp cuts, and what turns their gradient into that of the table.

    Each rank looks up what it holds and has zeros for the rest: a partial sum of which one part is not 0, so the sum is exact.
    """
    want("embedding", table, tp=Shard(0))
    starts = [start for start, _ in partition(setting.decoder.vocabulary, table.mesh.size("tp"))]
    first = [starts[table.mesh.coordinate(rank, "tp")] for rank in range(table.mesh.ranks)]
    rows = []
    for ids, own, start in zip(tokens.arrays, table.arrays, first):
        mine = (ids >= start) & (ids < start + len(own))
        rows.append(np.where(mine[..., None], own[np.where(mine, ids - start, 0)], 0.0))
    x = tokens.with_arrays(rows, {"tp": Partial()}, name="embedding.out")
    x = reduced(x, "tp", layer="embedding", ledger=setting.ledger) if setting.sequence is None \
        else reduce_scattered(x, "tp", 1, layer="embedding", ledger=setting.ledger)

    def back(dx: Placed) -> Placed:
        whole = dx if setting.sequence is None else gathered(dx, "tp", layer="embedding", ledger=setting.ledger)
        parts = []
        for ids, d, own, start in zip(tokens.arrays, whole.arrays, table.arrays, first):
            mine = (ids >= start) & (ids < start + len(own))
            part = np.zeros_like(own)
            np.add.at(part, ids[mine] - start, d[mine])
            parts.append(part)
        return table.with_arrays(parts, over_tokens(), name="embedding")

    return x, back


def layer(setting: Setting, w: Weights, x: Placed, i: int, feed: Callable[..., tuple[Placed, Back]] | None) -> tuple[Placed, Back]:
    """One layer of the decoder: attention and feed-forward, each behind a norm and beside a residual. feed None: SwiGLU."""
    name = f"layers.{i}"
    norms = [Norm(f"{name}.{n}", w[n], eps=setting.decoder.eps) for n in ("norm_attention", "norm_feed_forward")]
    a = norms[0].forward(x)
    attended, attend_back = attend(setting, w, a, name)
    middle = added(x, attended, layer=name, name=f"{name}.middle")
    f = norms[1].forward(middle)
    fed, feed_back = (swiglu_layer if feed is None else feed)(setting, w, f, name)

    def back(dout: Placed) -> tuple[Placed, Gradients]:
        df, own = feed_back(dout)
        dmiddle, d_norm = norms[1].backward(middle, df)
        dmiddle = added(dout, dmiddle, layer=name, name=f"{name}.dmiddle")
        da, more = attend_back(dmiddle)
        dx, d_first = norms[0].backward(x, da)
        both = {"norm_feed_forward": d_norm["weight"], "norm_attention": d_first["weight"]}
        return added(dmiddle, dx, layer=name, name=f"{name}.dx"), own | more | both

    return added(middle, fed, layer=name, name=f"{name}.out"), back


def attend(setting: Setting, w: Weights, x: Placed, name: str) -> tuple[Placed, Back]:
    """Attention of the heads of each rank of tp, over all parts of the sequence."""
    D = setting.decoder.head_size
    joined = setting.column(f"{name}.qkv", beside("qkv", [w[n] for n in ("w_q", "w_k", "w_v")]))
    out_layer = setting.row(f"{name}.w_o", w["w_o"])
    qkv = joined.forward(x)                                                     # (b, n, (H + 2 Hkv) D / tp)
    heads = [_own_heads(setting, a) for a in qkv.arrays]
    places = setting.positions(qkv.arrays[0].shape[1])
    turn: dict[str, Any] = {"pairing": setting.decoder.pairing, "base": setting.decoder.base, "scaling": setting.decoder.scaling}
    q, k = ([rope(h[j], p, **turn) for h, p in zip(heads, places)] for j in (0, 1))
    v = [h[2] for h in heads]
    out = qkv.with_arrays([join_heads(a) for a in _over_context(setting, q, k, v, None)[0]], name=f"{name}.heads")

    def back(dy: Placed) -> tuple[Placed, Gradients]:
        dout, own = out_layer.backward(out, dy)
        d = _over_context(setting, q, k, v, [split_heads(a, D) for a in dout.arrays])
        turned = [[join_heads(rope_backward(a, p, **turn)) for a, p in zip(d[j], places)] for j in (0, 1)]
        parts = [np.concatenate([*three], axis=-1) for three in zip(*turned, (join_heads(a) for a in d[2]))]
        dx, of_joined = joined.backward(x, qkv.with_arrays(parts, name=f"{name}.dqkv"))
        return dx, {"w_o": own["w"], **apart(of_joined["w"], {n: w[n] for n in ("w_q", "w_k", "w_v")})}

    return out_layer.forward(out), back


def swiglu_layer(setting: Setting, w: Weights, x: Placed, name: str) -> tuple[Placed, Back]:
    """The hidden width cut over tp: silu(x w_gate) (x w_up) by columns, w_down by rows."""
    up = setting.column(f"{name}.w_up", beside("up", [w["w_gate"], w["w_up"]]))
    down = setting.row(f"{name}.w_down", w["w_down"])
    both = up.forward(x)                                                        # (b, n, 2 F / tp)
    halves = [np.split(a, 2, axis=-1) for a in both.arrays]
    slopes = [silu_and_slope(g) for g, _ in halves]
    h = both.with_arrays([s * a for (s, _), (_, a) in zip(slopes, halves)], name=f"{name}.hidden")

    def back(dy: Placed) -> tuple[Placed, Gradients]:
        dh, own = down.backward(h, dy)
        parts = [np.concatenate([d * a * slope, d * s], axis=-1) for d, (s, slope), (_, a) in zip(dh.arrays, slopes, halves)]
        dx, of_up = up.backward(x, both.with_arrays(parts, name=f"{name}.dhidden"))
        return dx, {"w_down": own["w"], **apart(of_up["w"], {n: w[n] for n in ("w_gate", "w_up")})}

    return down.forward(h), back


def logits(setting: Setting, w: Weights, x: Placed) -> tuple[Placed, Back]:
    """The last norm and the head, whose vocabulary tp cuts: logits (b, n, V / tp)."""
    norm = Norm("norm", w["norm"], eps=setting.decoder.eps)
    head = setting.column("head", w["head"])
    y = norm.forward(x)

    def back(dz: Placed) -> tuple[Placed, Gradients]:
        dy, of_head = head.backward(y, dz)
        dx, of_norm = norm.backward(x, dy)
        return dx, {"norm": of_norm["weight"], "head": of_head["w"]}

    return head.forward(y), back


def score(setting: Setting, z: Placed, targets: Placed, ignore_index: int) -> tuple[float, Placed]:
    """The sum of the losses of all tokens of a micro-batch, and the gradient of the logits."""
    want("cross_entropy", z, tp=Shard(2))
    starts = [start for start, _ in partition(setting.decoder.vocabulary, z.mesh.size("tp"))]
    totals, dz = [], list(z.arrays)
    for group in z.mesh.groups("tp"):
        total, gradients = vocabulary_loss([z.arrays[r] for r in group], starts, targets.arrays[group[0]], ignore_index)
        totals.append(np.asarray(total))
        for r, d in zip(group, gradients):
            dz[r] = d
    return float(all_reduce(totals)[0][0]), z.with_arrays(dz, name="head.dout")


def vocabulary_loss(z: Sequence[Float64], first: Sequence[int], targets: Int64, ignore_index: int) -> tuple[float, list[Float64]]:
    """The sum of token losses of logits of which each rank has some classes, from class `first` on, and its gradient on each.

    A maximum and two sums over the ranks, as in `vocab_parallel_cross_entropy`; the parts may differ in size.

    >>> loss, dz = vocabulary_loss([np.zeros((1, 1)), np.zeros((1, 3))], [0, 1], np.array([2]), -100)
    >>> round(loss, 4), dz[1].tolist()
    (1.3863, [[0.25, -0.75, 0.25]])
    """
    counts = targets != ignore_index
    m = all_reduce([a.max(axis=-1) for a in z], op="max")[0][0]
    e = [np.exp(a - m[..., None]) for a in z]
    l = all_reduce([a.sum(axis=-1) for a in e])[0][0]
    mine = [(targets - start)[..., None] == np.arange(a.shape[-1]) for a, start in zip(z, first)]
    of_target = all_reduce([np.where(at, a, 0.0).sum(axis=-1) for at, a in zip(mine, z)])[0][0]
    losses = np.where(counts, np.log(l) + (m - of_target), 0.0)
    return float(losses.sum()), [np.where(counts[..., None], a / l[..., None] - at, 0.0) for a, at in zip(e, mine)]


def beside(name: str, parts: Sequence[Placed]) -> Placed:
    """Weights cut by columns as one, each rank's columns side by side: one product and one all-reduce instead of several.

    >>> from .placement import Mesh, place
    >>> w = place("w", np.array([[1.0, 2.0]]), Mesh({"tp": 2}), tp=Shard(1))
    >>> [a.tolist() for a in beside("both", [w, w]).arrays]
    [[[1.0, 1.0]], [[2.0, 2.0]]]
    """
    return parts[0].with_arrays([np.concatenate(own, axis=1) for own in zip(*(part.arrays for part in parts))], name=name)


def apart(gradient: Placed, parts: Mapping[str, Placed]) -> Gradients:
    """The gradient of what `beside` put together, one for each of them."""
    ends = np.cumsum([part.arrays[0].shape[1] for part in parts.values()])[:-1]
    cut = [np.split(a, ends, axis=1) for a in gradient.arrays]
    return {name: gradient.with_arrays([own[j] for own in cut], name=name) for j, name in enumerate(parts)}


def _own_heads(setting: Setting, a: Array) -> list[Float64]:
    """q, k, v of the heads of one rank: (b, H / tp, n, D) and (b, Hkv / tp, n, D) twice."""
    d, tp = setting.decoder, setting.layout.tp
    ends = np.cumsum([d.heads // tp * d.head_size, d.kv_heads // tp * d.head_size])
    return [split_heads(part, d.head_size) for part in np.split(a, ends, axis=-1)]


def _over_context(
    setting: Setting, q: Sequence[Array], k: Sequence[Array], v: Sequence[Array], dout: Sequence[Array] | None
) -> list[list[Array]]:
    """Attention of every group of ranks along cp, or with dout its gradients: lists (out,) or (dq, dk, dv) of all ranks."""
    found: list[list[Array]] = [[np.zeros(0)] * len(q) for _ in range(1 if dout is None else 3)]
    for group in setting.layout.mesh.groups("cp"):
        given = [[x[r] for r in group] for x in (q, k, v)] + ([] if dout is None else [[dout[r] for r in group]])
        for target, answer in zip(found, _of_group(setting, given)):
            for r, a in zip(group, answer):
                target[r] = a
    return found


def _of_group(setting: Setting, given: list[list[Array]]) -> Sequence[list[Array]]:
    layout = setting.layout
    if layout.cp == 1:
        see: dict[str, Any] = {"causal": "bottom_right", "window": left_window(setting.decoder.window)}
        q, k, v = (x[0] for x in given[:3])
        out, lse = attention(q, k, v, **see)
        if len(given) == 3:
            return [[out]]
        d = attention_backward(q, k, v, out, lse, given[3][0], **see)
        return [[d["dq"]], [d["dk"]], [d["dv"]]]
    options: dict[str, Any] = {"causal": "bottom_right", "order": setting.order}
    if layout.context == "all_to_all":
        return all_to_all_attention(*given, **options)[:1] if len(given) == 3 else all_to_all_attention_backward(*given, **options)
    return ring_attention(*given, **options)[:1] if len(given) == 3 else ring_attention_backward(*given, **options)


def over_tokens() -> dict[str, Any]:
    """A gradient of weights as it comes: a partial sum over the axes that cut the tokens."""
    return dict.fromkeys(("dp", "ep", "cp"), Partial())
