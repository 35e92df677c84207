"""Signatures: the arguments and results of each operation, as data that worker and declaration can read without the oracles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Signature:
    """Argument and result names of one operation.

    required    arrays, in the order of the contract, always given
    optional    other arguments, arrays or not; absent means the default
    results     names of the results, in the order in which they are returned
    laid_out    arrays (arguments and results) whose axes are (B, H, L, D), reordered for a subject of another layout
    integers    results that are token ids, counts or codes, in any integer dtype; booleans: results that are masks
    choices     options without a default that take one of a few values; a subject without such an argument says which it means
    moments     arguments and results that are an optimizer's moments, which may have a format of their own
    lists       arguments and results that are lists of arrays, one array of a case for each member: see `array_lists`
    as_array    results of lists that come as one array where the list argument of that name does, whose first axis counts the members
    kinds       options that are records: the kinds there are, "none" for None, of which a subject may take some only; and options
                of few values that have a default
    given_with  results that there are only where this argument is given
    handed_back results that are the argument of that name where it is given: they may be that very array
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    results: tuple[str, ...]
    laid_out: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    booleans: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    as_array: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    given_with: Mapping[str, str] = field(default_factory=dict)
    handed_back: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.required + self.optional


_ATTENTION_OPTIONS = (
    "causal", "window", "scale", "softcap", "bias", "mask", "kv_lengths", "sinks", "alibi_slopes", "dropout_mask", "dropout_p",
)  # fmt: skip
_REDUCTION = {"reduction": ("mean", "sum", "none")}
_DIVERGENCE = {"divergence": ("forward_kl", "reverse_kl", "jsd")}
_PACKED_OPTIONS = ("causal", "window", "scale", "softcap")
_SHARDS, _ORDERS = ("q_shards", "k_shards", "v_shards"), {"order": ("contiguous", "zigzag")}
_KINDS = {"kind": ("gpipe", "1f1b", "interleaved", "zero_bubble")}

SIGNATURES: dict[str, Signature] = {
    "softmax": Signature(("x",), ("axis",), ("p",)),
    "log_sum_exp": Signature(("x",), ("axis",), ("lse",)),
    "merge_attention": Signature(("out_a", "lse_a", "out_b", "lse_b"), (), ("out", "lse")),
    "attention": Signature(("q", "k", "v"), _ATTENTION_OPTIONS, ("out", "lse"), laid_out=("q", "k", "v", "out")),
    "attention_backward": Signature(
        ("q", "k", "v", "out", "lse", "dout"), _ATTENTION_OPTIONS, ("dq", "dk", "dv", "dbias", "dsinks"),
        laid_out=("q", "k", "v", "out", "dout", "dq", "dk", "dv"), given_with={"dbias": "bias", "dsinks": "sinks"},
    ),
    "attention_packed": Signature(("q", "k", "v", "cu_q", "cu_k"), _PACKED_OPTIONS, ("out", "lse")),
    "attention_packed_backward": Signature(("q", "k", "v", "out", "lse", "dout", "cu_q", "cu_k"), _PACKED_OPTIONS, ("dq", "dk", "dv")),
    "rope": Signature(
        ("x", "positions"), ("pairing", "base", "rotary_dim", "scaling"), ("out",), choices={"pairing": ("half", "interleaved")},
        kinds={"scaling": ("none", "linear", "ntk", "yarn", "llama3")},
    ),
    "write_kv": Signature(("k_cache", "v_cache", "k", "v", "slots"), (), ("k_cache", "v_cache")),
    "padded_positions": Signature(("present",), ("past",), ("positions",), integers=("positions",)),
    "paged_attention": Signature(
        ("q", "k_pages", "v_pages", "block_tables", "kv_lengths"), ("causal", "query_lengths", "window", "scale", "softcap", "sinks"),
        ("out", "lse"), laid_out=("q", "out"),
    ),
    "mla_attention": Signature(
        ("q_nope", "q_rope", "latent", "k_rope", "w_uk", "w_uv"), ("causal", "scale", "kv_lengths", "mask"), ("out", "lse"),
        laid_out=("q_nope", "q_rope", "out"),
    ),
    "filter_probabilities": Signature(("logits",), ("temperature", "top_k", "top_p", "min_p"), ("probabilities",)),
    "apply_penalties": Signature(("logits", "tokens"), ("prompt_lengths", "repetition", "frequency", "presence"), ("logits",)),
    "sample": Signature(("probabilities", "u"), (), ("token",), integers=("token",)),
    "speculative_verify": Signature(
        ("draft_tokens", "draft_probs", "target_probs", "accept_u", "sample_u"), ("draft_lengths",), ("tokens", "n_accepted"),
        integers=("tokens", "n_accepted"),
    ),
    "tree_positions": Signature(("parents",), ("n_past",), ("positions",), integers=("positions",)),
    "speculative_loop": Signature(
        ("target", "draft", "prompt", "uniforms"), ("eos", "forbidden"), ("tokens", "n_accepted"), integers=("tokens", "n_accepted")
    ),
    "mtp_loop": Signature(
        ("target", "heads", "prompt", "uniforms"), ("eos", "forbidden"), ("tokens", "n_accepted"), integers=("tokens", "n_accepted")
    ),
    "mtp_loss": Signature(("logits", "tokens"), ("weights", "segments", "ignore_index"), ("loss",)),
    "kv_bytes": Signature(("lengths",), ("config", "element_bits"), ("bytes",), integers=("bytes",)),
    "training_bytes": Signature(
        ("parameters",), ("stage", "world", "weight_bytes", "gradient_bytes", "optimizer_bytes"), ("bytes",), integers=("bytes",)
    ),
    "model_flops": Signature(
        ("lengths",), ("config", "pairs", "backward"), ("flops",), integers=("flops",), choices={"pairs": ("causal", "all")}
    ),
    "token_accuracy": Signature(("logits", "tokens"), ("ignore_index",), ("right", "counted"), integers=("right", "counted")),
    "adamw_step": Signature(
        ("param", "grad", "m", "v"), ("step", "lr", "beta1", "beta2", "eps", "weight_decay"), ("param", "m", "v"), moments=("m", "v")),
    "clip_grad_norm": Signature(("grads",), ("max_norm",), ("grads", "norm"), lists=("grads",)),
    "master_weight_step": Signature(
        ("grad", "master", "m", "v"),
        ("loss_scale", "max_norm", "step", "lr", "beta1", "beta2", "eps", "weight_decay", "fmt"), ("weights", "master", "m", "v"),
        choices={"fmt": ("bfloat16", "float16")},
    ),
    "next_token_targets": Signature(("tokens",), ("prompt_lengths", "segments", "ignore_index"), ("targets",), integers=("targets",)),
    "cross_entropy": Signature(
        ("logits", "targets"), ("weights", "ignore_index", "label_smoothing", "z_loss", "reduction"), ("loss",), choices=_REDUCTION),
    "cross_entropy_backward": Signature(
        ("logits", "targets", "dloss"), ("weights", "ignore_index", "label_smoothing", "z_loss", "reduction"), ("dlogits",),
        choices=_REDUCTION,
    ),
    "vocab_parallel_cross_entropy": Signature(
        ("shards", "targets"), ("ignore_index", "label_smoothing", "z_loss", "reduction"), ("loss",), choices=_REDUCTION),
    "distillation_loss": Signature(
        ("student", "teacher", "targets"), ("temperature", "alpha", "divergence", "beta", "ignore_index"), ("loss",),
        choices=_DIVERGENCE,
    ),
    "distillation_loss_backward": Signature(
        ("student", "teacher", "targets", "dloss"), ("temperature", "alpha", "divergence", "beta", "ignore_index"), ("dstudent",),
        choices=_DIVERGENCE,
    ),
    "schedule": Signature(("kind",), ("stages", "microbatches", "chunks"), ("actions",), integers=("actions",), choices=_KINDS),
    "pipeline_loss": Signature(("token_losses", "lengths"), ("microbatch_size",), ("loss",)),
    "pipeline_step": Signature(
        ("x", "targets", "lengths", "weights"), ("kind", "microbatch_size", "chunks", "accumulation", "dropout_mask", "dropout_p"),
        ("loss", "dx", "dweights"), lists=("weights", "dweights"), choices=_KINDS,
    ),
    "ring_attention": Signature(
        _SHARDS, ("causal", "order", "segments", "scale"), ("out", "lse"), lists=(*_SHARDS, "out", "lse"), kinds=_ORDERS),
    "ring_attention_backward": Signature(
        (*_SHARDS, "dout_shards"), ("causal", "order", "segments", "scale"), ("dq", "dk", "dv"),
        lists=(*_SHARDS, "dout_shards", "dq", "dk", "dv"), kinds=_ORDERS,
    ),
    "sharded_cache_attention": Signature(
        ("q", "k_shards", "v_shards", "indices"), ("interleave", "scale"), ("out", "lse"), lists=("k_shards", "v_shards")),
    "exchanged_norm_backward": Signature(
        ("dy_shards", "x_shards", "weight"), ("eps",), ("dx", "dweight"), lists=("dy_shards", "x_shards", "dx")),
    "route": Signature(
        ("logits",), ("k", "normalize", "bias"), ("ids", "gates"), integers=("ids",), kinds={"normalize": ("yes", "no")}),
    "balance_loss": Signature(("probs", "ids"), ("mask",), ("loss",)),
    "balance_loss_backward": Signature(("probs", "ids", "dloss"), ("mask",), ("dprobs",)),
    "moe_layer": Signature(
        ("x", "logits", "weights"), ("k", "normalize", "bias", "capacity"), ("out", "slots"), integers=("slots",),
        kinds={"normalize": ("yes", "no")},
    ),
    "expert_parallel_backward": Signature(
        ("x", "logits", "weights", "dout"), ("k", "normalize", "bias", "capacity"), ("dx", "dlogits", "dweights"),
        kinds={"normalize": ("yes", "no")},
    ),
    "quantize": Signature(
        ("x",), ("bits", "axis", "group", "symmetric", "scale", "zero"), ("q", "scale", "zero"), integers=("q", "zero"),
        choices={"bits": ("8", "4", "2")}, kinds={"symmetric": ("yes", "no")}, handed_back=("scale", "zero"),
    ),
    "dequantize": Signature(("q", "scale", "zero"), ("axis", "group"), ("out",)),
    "quantized_matmul": Signature(("x", "q", "scale"), ("x_scale", "bias"), ("out",)),
    "dequantize_blockwise": Signature(("codes", "absmax"), ("block", "codebook", "absmax_scale", "absmax_offset"), ("out",)),
    "prune_magnitude": Signature(
        ("weights",), ("sparsity", "scope", "rule"), ("masks",), booleans=("masks",), lists=("weights", "masks"),
        as_array={"masks": "weights"}, choices={"scope": ("layer", "global")},
    ),
    "prune_2_4": Signature(("w",), ("axis",), ("mask",), booleans=("mask",)),
    "gradual_masks": Signature(
        ("history",), ("sparsities", "scope"), ("masks",), booleans=("masks",), choices={"scope": ("layer", "global")}
    ),
    "all_reduce": Signature(("arrays",), ("op", "algorithm"), ("out",), lists=("arrays", "out")),
    "reduce_scatter": Signature(("arrays",), ("op",), ("out",), lists=("arrays", "out")),
    "all_gather": Signature(("arrays",), (), ("out",), lists=("arrays", "out")),
    "bucketed_all_reduce": Signature(("grads", "arrival"), ("bucket_elements",), ("grads",), lists=("grads",)),
    "accumulate_gradients": Signature(("grads", "tokens"), (), ("grads",)),
    "tied_gradients": Signature(("grads",), (), ("grads",)),
    "flat_layout": Signature(("sizes",), ("alignment", "world"), ("offsets", "total"), integers=("offsets", "total")),
    "column_parallel": Signature(("x", "w_shards", "bias_shards"), (), ("out",), lists=("w_shards", "bias_shards", "out")),
    "row_parallel": Signature(("x_shards", "w_shards", "bias"), (), ("out",), lists=("x_shards", "w_shards", "out")),
    "shard_qkv": Signature(("w_q", "w_k", "w_v"), ("heads", "kv_heads", "world"), ("q", "k", "v"), lists=("q", "k", "v")),
    "vocab_parallel_embedding": Signature(("tokens", "table"), ("world",), ("out",), lists=("out",)),
    "vocab_parallel_cross_entropy_backward": Signature(
        ("shards", "targets", "dloss"), ("ignore_index", "label_smoothing", "z_loss", "reduction"), ("dshards",), choices=_REDUCTION),
    "norm_backward_sharded": Signature(
        ("x_shards", "weight", "dout_shards"), ("eps", "sharded"), ("dx", "dweight"), lists=("x_shards", "dout_shards", "dx", "dweight"),
        choices={"sharded": ("tokens", "heads")},
    ),
    "clip_grad_norm_sharded": Signature(("grads", "placement"), ("max_norm",), ("grads", "norm"), lists=("grads",)),
}  # fmt: skip
