"""Legal variants of the data-parallel and tensor-parallel families: rings either way, trees, other buckets, biases on one rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_ranks
from .specimen import variant
from .textbook_decoding import working
from .textbook_ranks import OPS, Array, everywhere, heads_of, in_order, norm_parts, unpack

DATA, TENSOR, ZERO = "data-parallel", "tensor-parallel", "zero"
IN_FLOAT64 = Arithmetic(accumulate="float64", elementwise="float64")
IN_ITS_FORMAT = Arithmetic(accumulate="input", elementwise="input")
SIXTEEN = ["float32", "float64", "bfloat16", "float16"]


@variant("all_reduce", id="all-reduce-in-rank-order", family=DATA, dtypes=SIXTEEN)
def reduced_in_rank_order(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> list[Array]:
    """Rank 0 adds all, one after the other, and sends the sum back."""
    return textbook_ranks.all_reduce(arrays, op=op)


def _ring(arrays: Any, op: str, direction: int) -> list[Array]:
    """Part c travels round the ring in one direction from its own rank on, and every rank adds to it."""
    R, parts = len(arrays), [np.array_split(working(x).reshape(-1), len(arrays)) for x in arrays]
    sums = []
    for c in range(R):
        total = parts[c][c]
        for i in range(1, R):
            total = OPS[op](total, parts[(c + direction * i) % R][c])
        sums.append(total / total.dtype.type(R) if op == "mean" else total)
    return everywhere(np.concatenate(sums).reshape(arrays[0].shape), R, arrays[0].dtype)


@variant("all_reduce", id="all-reduce-ring-forwards", family=DATA)
def ring_forwards(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> list[Array]:
    """A ring in which rank r sends to rank r + 1."""
    return _ring(arrays, op, 1)


@variant("all_reduce", id="all-reduce-ring-backwards", family=DATA, dtypes=SIXTEEN)
def ring_backwards(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> list[Array]:
    """A ring in which rank r sends to rank r - 1."""
    return _ring(arrays, op, -1)


@variant("all_reduce", id="all-reduce-butterfly", family=DATA)
def butterfly(arrays: Any, *, op: str = "sum") -> list[Array]:
    """Pairs at distance 1, 2, 4, … exchange their sums; ranks beyond the last power of two join the first before."""
    R, held = len(arrays), [working(x) for x in arrays]
    n = 1 << (R.bit_length() - 1)
    running = [OPS[op](held[r], held[r + n]) if r + n < R else held[r] for r in range(n)]
    distance = 1
    while distance < n:
        running = [OPS[op](running[min(r, r ^ distance)], running[max(r, r ^ distance)]) for r in range(n)]
        distance *= 2
    out = running[0] / running[0].dtype.type(R) if op == "mean" else running[0]
    return everywhere(out, R, arrays[0].dtype)


@variant("all_reduce", id="all-reduce-divided-first", family=DATA)
def divided_before_the_sum(arrays: Any, *, op: str = "sum") -> list[Array]:
    """A mean of which every rank divides its own part first, so that no sum overflows."""
    R = len(arrays)
    if op == "mean":
        return everywhere(in_order([working(x) / working(x).dtype.type(R) for x in arrays]), R, arrays[0].dtype)
    return textbook_ranks.all_reduce(arrays, op=op)


@variant("all_reduce", id="all-reduce-in-sixteen-bits", family=DATA, dtypes=["bfloat16", "float16"], arithmetic=IN_ITS_FORMAT)
def reduced_in_its_format(arrays: Any, *, op: str = "sum") -> list[Array]:
    """Every partial sum is rounded to 16 bits on its way, and this says so."""
    dtype, total = arrays[0].dtype, arrays[0]
    for x in arrays[1:]:
        total = OPS[op](working(total), working(x)).astype(dtype)
    out = (working(total) / np.float32(len(arrays))).astype(dtype) if op == "mean" else total
    return everywhere(out, len(arrays), dtype)


@variant("all_reduce", id="all-reduce-in-float64", family=DATA, arithmetic=IN_FLOAT64)
def reduced_in_float64(arrays: Any, *, op: str = "sum", algorithm: str = "ring") -> list[Array]:
    """Added up in float64 and rounded once."""
    return [x.astype(arrays[0].dtype) for x in textbook_ranks.all_reduce([np.asarray(x, np.float64) for x in arrays], op=op)]


@variant("reduce_scatter", id="reduce-scatter-direct", family=DATA, dtypes=SIXTEEN)
def parts_sent_directly(arrays: Any, *, op: str = "sum") -> list[Array]:
    """Every rank sends each other its part, and adds what it gets, its own last."""
    R = len(arrays)
    parts = [np.split(working(x), R) for x in arrays]
    own = [[parts[(r + 1 + i) % R][r] for i in range(R)] for r in range(R)]
    return [in_order(received, op).astype(arrays[0].dtype) for received in own]


@variant("all_gather", id="all-gather-into-a-buffer", family=DATA, dtypes=SIXTEEN)
def gathered_into_a_buffer(arrays: Any) -> list[Array]:
    """Each rank's part is written at its offset of a buffer of the whole."""
    whole = np.empty((sum(len(x) for x in arrays), *arrays[0].shape[1:]), arrays[0].dtype)
    start = 0
    for x in arrays:
        whole[start : start + len(x)] = x
        start += len(x)
    return everywhere(whole, len(arrays), whole.dtype)


@variant("bucketed_all_reduce", id="buckets-as-given", family=DATA, dtypes=SIXTEEN)
def buckets_in_order_of_arrival(grads: Any, arrival: Any, *, bucket_elements: int) -> list[Array]:
    """Buckets in the order of rank 0."""
    return textbook_ranks.bucketed_all_reduce(grads, arrival, bucket_elements=bucket_elements)


@variant("bucketed_all_reduce", id="one-bucket", family=DATA)
def one_bucket(grads: Any, arrival: Any, *, bucket_elements: int) -> list[Array]:
    """All gradients in one bucket, whatever it may hold, in the order of the parameters."""
    R, out = len(arrival), [np.empty_like(g) for g in grads]
    flat = [np.concatenate([g[r].reshape(-1) for g in grads]) for r in range(R)]
    unpack(out, range(len(grads)), _ring(flat, "mean", 1))
    return out


@variant("bucketed_all_reduce", id="no-buckets", family=DATA)
def each_by_itself(grads: Any, arrival: Any, *, bucket_elements: int) -> list[Array]:
    """Every gradient by itself, as soon as it is there."""
    return [np.stack(textbook_ranks.all_reduce(list(g), op="mean")) for g in grads]


@variant("bucketed_all_reduce", id="padding-in-front", family=ZERO)
def filled_up_in_front(grads: Any, arrival: Any, *, bucket_elements: int) -> list[Array]:
    """Buckets are filled up to a multiple of the ranks with zeros in front, which are cut off again."""
    R, out = len(arrival), [np.empty_like(g) for g in grads]
    for bucket in textbook_ranks.buckets_of([g[0].size for g in grads], arrival[0].tolist(), bucket_elements):
        flat = [np.concatenate([grads[k][r].reshape(-1) for k in bucket]) for r in range(R)]
        pad = -flat[0].size % R
        padded = [np.concatenate([np.zeros(pad, x.dtype), x]) for x in flat]
        unpack(out, bucket, [x[pad:] for x in _ring(padded, "mean", 1)])
    return out


@variant("bucketed_all_reduce", id="two-buffers", family=ZERO)
def two_buffers_in_turn(grads: Any, arrival: Any, *, bucket_elements: int) -> list[Array]:
    """A bucket is filled in one buffer while that in the other is reduced, one step late."""
    R, out = len(arrival), [np.empty_like(g) for g in grads]
    buckets = textbook_ranks.buckets_of([g[0].size for g in grads], arrival[0].tolist(), bucket_elements)
    buffers: list[list[Array]] = [[], []]
    for turn, bucket in enumerate([*buckets, []]):
        if bucket:
            buffers[turn % 2] = [np.concatenate([grads[k][r].reshape(-1) for k in bucket]) for r in range(R)]
        if turn:
            late = textbook_ranks.all_reduce(buffers[(turn - 1) % 2], op="mean")
            unpack(out, buckets[turn - 1], late)
    return out


@variant("accumulate_gradients", id="accumulate-then-divide", family=DATA, dtypes=SIXTEEN)
def accumulated_then_divided(grads: Any, tokens: Any) -> Array:
    """All micro-batches of all ranks are added up, and divided by the number of all tokens."""
    return textbook_ranks.accumulate_gradients(grads, tokens)


@variant("accumulate_gradients", id="accumulate-with-world-factor", family=DATA)
def multiplied_by_the_world(grads: Any, tokens: Any) -> Array:
    """Each rank divides by the number of all tokens and multiplies by R, and the mean over ranks takes that back."""
    g = working(grads)
    own = g.sum(axis=1, dtype=g.dtype) / g.dtype.type(max(int(tokens.sum()), 1)) * g.dtype.type(len(g))
    return np.stack(everywhere(in_order(list(own), "mean"), len(g), grads.dtype))


@variant("accumulate_gradients", id="accumulate-means-by-tokens", family=DATA)
def means_weighted_by_tokens(grads: Any, tokens: Any) -> Array:
    """Micro-batches give means, which are weighted by their shares of all tokens."""
    g = working(grads)
    means = g / np.maximum(tokens, 1).astype(g.dtype)[..., None]
    shares = tokens.astype(g.dtype)[..., None] / g.dtype.type(max(int(tokens.sum()), 1))
    return np.stack(everywhere((means * shares).sum(axis=(0, 1), dtype=g.dtype), len(g), grads.dtype))


@variant("tied_gradients", id="tied-copies-first", family=ZERO, dtypes=SIXTEEN)
def copies_added_first(grads: Any) -> Array:
    """The copies are added on each rank, then averaged over ranks."""
    return textbook_ranks.tied_gradients(grads)


@variant("tied_gradients", id="tied-whole-ranks-first", family=ZERO)
def whole_copies_averaged_first(grads: Any) -> Array:
    """Whole gradients are averaged over ranks first, and then the copies added: legal, for nothing is scattered between."""
    g = working(grads)
    mean = g.sum(axis=1, dtype=g.dtype) / g.dtype.type(g.shape[1])
    return np.broadcast_to(mean.sum(axis=0, dtype=g.dtype), g.shape).astype(grads.dtype)


@variant("flat_layout", id="flat-by-rounding-up", family=ZERO)
def rounded_up_sizes(sizes: Any, *, alignment: int = 1, world: int = 1) -> tuple[Array, Array]:
    """Sizes rounded up to the alignment, summed."""
    up = -(-sizes // alignment) * alignment
    offsets = np.cumsum(up) - up
    end = int(offsets[-1] + sizes[-1]) if len(sizes) else 0
    return offsets.astype(np.int64), np.asarray(-(-end // world) * world)


@variant("column_parallel", id="column-parallel-textbook", family=TENSOR, dtypes=SIXTEEN)
def columns_one_by_one(x: Any, w_shards: Any, bias_shards: Any) -> list[Array]:
    """Each rank's product and bias."""
    return textbook_ranks.column_parallel(x, w_shards, bias_shards)


@variant("column_parallel", id="column-parallel-transposed", family=TENSOR)
def transposed_weights(x: Any, w_shards: Any, bias_shards: Any) -> list[Array]:
    """Weights stored as (outputs, inputs), as in PyTorch; the bias as one more input of 1."""
    one = np.concatenate([working(x), np.ones((len(x), 1), working(x).dtype)], axis=1)
    rows = [np.concatenate([working(w).T, working(b)[:, None]], axis=1) for w, b in zip(w_shards, bias_shards)]
    return [(w @ one.T).T.astype(x.dtype) for w in rows]


@variant("row_parallel", id="row-parallel-textbook", family=TENSOR, dtypes=SIXTEEN)
def rows_then_bias(x_shards: Any, w_shards: Any, bias: Any) -> list[Array]:
    """Partial products added up, then the bias."""
    return textbook_ranks.row_parallel(x_shards, w_shards, bias)


@variant("row_parallel", id="row-parallel-bias-on-rank-0", family=TENSOR,
         source="https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/layers/linear.py")
def bias_on_the_first_rank(x_shards: Any, w_shards: Any, bias: Any) -> list[Array]:
    """Rank 0 adds the bias before the reduction, the others none."""
    partial = [working(x) @ working(w) for x, w in zip(x_shards, w_shards)]
    return everywhere(in_order([partial[0] + working(bias), *partial[1:]]), len(partial), bias.dtype)


@variant("row_parallel", id="row-parallel-sixteen-bit-buffers", family=TENSOR, dtypes=["bfloat16", "float16"])
def partial_products_stored(x_shards: Any, w_shards: Any, bias: Any) -> list[Array]:
    """Partial products are stored in 16 bits before they are added up in float32."""
    partial = [(working(x) @ working(w)).astype(bias.dtype) for x, w in zip(x_shards, w_shards)]
    return everywhere(in_order(partial) + working(bias), len(partial), bias.dtype)


@variant("shard_qkv", id="shard-qkv-head-by-head", family=TENSOR, dtypes=SIXTEEN)
def heads_dealt_out(w_q: Any, w_k: Any, w_v: Any, *, heads: int, kv_heads: int, world: int) -> Any:
    """Head by head, each with the key/value head that it reads."""
    return textbook_ranks.shard_qkv(w_q, w_k, w_v, heads=heads, kv_heads=kv_heads, world=world)


@variant("shard_qkv", id="shard-qkv-repeated-first", family=TENSOR)
def repeated_then_cut(w_q: Any, w_k: Any, w_v: Any, *, heads: int, kv_heads: int, world: int) -> Any:
    """Key/value heads are repeated until there is one for every rank, then all are cut into equal parts."""
    copies = max(world // kv_heads, 1)
    many = [heads_of(w, kv_heads, np.repeat(np.arange(kv_heads), copies).tolist()) for w in (w_k, w_v)]
    return tuple([part.copy() for part in np.split(w, world, axis=1)] for w in (w_q, *many))


@variant("vocab_parallel_embedding", id="embedding-by-lookup", family=TENSOR, dtypes=SIXTEEN)
def looked_up(tokens: Any, table: Any, *, world: int) -> list[Array]:
    """Each rank looks up its own rows, zeros elsewhere, and all are added."""
    return textbook_ranks.vocab_parallel_embedding(tokens, table, world=world)


@variant("vocab_parallel_embedding", id="embedding-by-one-hot", family=TENSOR)
def one_hot_product(tokens: Any, table: Any, *, world: int) -> list[Array]:
    """A product with a one-hot matrix: one term is the row, all others are 0."""
    one_hot = (tokens[..., None] == np.arange(len(table))).astype(working(table).dtype)
    return everywhere(one_hot @ working(table), world, table.dtype)


@variant("vocab_parallel_cross_entropy_backward", id="vocab-gradient-of-log-probabilities", family=TENSOR, dtypes=SIXTEEN)
def exp_of_log_probabilities(shards: Any, targets: Any, dloss: Any, **options: Any) -> Array:
    """e^(log p) less the labels."""
    return textbook_ranks.vocab_parallel_cross_entropy_backward(shards, targets, dloss, **options)


@variant("norm_backward_sharded", id="norm-gradient-textbook", family=TENSOR, dtypes=SIXTEEN)
def norm_gradients(x_shards: Any, weight: Any, dout_shards: Any, *, eps: float = 1e-6, sharded: str) -> Any:
    """Each rank's part of the weight's gradient, added up in rank order."""
    return textbook_ranks.norm_backward_sharded(x_shards, weight, dout_shards, eps=eps, sharded=sharded)


@variant("norm_backward_sharded", id="norm-gradient-ring", family=TENSOR)
def norm_gradients_by_a_ring(x_shards: Any, weight: Any, dout_shards: Any, *, eps: float = 1e-6, sharded: str) -> Any:
    """Each rank's part of the weight's gradient, added up by a ring."""
    dx, parts = norm_parts(x_shards, weight, dout_shards, eps)
    return dx, [part.astype(weight.dtype) for part in _ring(parts, "sum", -1)]


@variant("clip_grad_norm_sharded", id="clip-copies-once", family=TENSOR, dtypes=SIXTEEN)
def copies_of_rank_0(grads: Any, placement: Any, *, max_norm: float) -> Any:
    """Squares of shards from all ranks, of copies from rank 0."""
    return textbook_ranks.clip_grad_norm_sharded(grads, placement, max_norm=max_norm)


@variant("clip_grad_norm_sharded", id="clip-copies-shared-out", family=TENSOR)
def copies_shared_out(grads: Any, placement: Any, *, max_norm: float) -> Any:
    """Every rank counts 1 / R of the squares of a copy, and all squares are added over the ranks."""
    wide = [working(g) for g in grads]
    f, R = wide[0].dtype.type, len(wide[0])
    own = [sum(float((g[r] * g[r]).sum(dtype=f)) / (1 if kind else R) for g, kind in zip(wide, placement)) for r in range(R)]
    norm = np.sqrt(np.sum(own, dtype=f))
    factor = f(min(1.0, max_norm / float(norm))) if norm > 0 else f(1)
    return [(g * factor).astype(grads[0].dtype) for g in wide], np.asarray(norm).astype(grads[0].dtype)
