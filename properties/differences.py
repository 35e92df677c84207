"""Differences: where released libraries answer otherwise than the oracles, by operation. Facts that were seen, not judgements.

Seen on CPUs with PyTorch 2.13.0, JAX 0.10.2, ONNX Runtime 1.32.0, onnx 1.23.2, MLX 0.32.4, tinygrad 0.14.0, ggml 0.25.3,
vLLM 0.33.0 under Triton's interpreter; else in the report whose address is given.
"""

from __future__ import annotations

from .differences_ranks import RANK_DIFFERENCES

# operation: (point, who answers what)
DIFFERENCES: dict[str, tuple[tuple[str, str], ...]] = {
    "softmax": (
        ("a row of nothing but -inf", "0: here. NaN: PyTorch, JAX, ONNX Runtime, and the formula written out. tinygrad: NaN, but 1 "
         "where there is one entry, whatever it holds."),
    ),
    "log_sum_exp": (
        ("nothing but -inf", "-inf: here, and in PyTorch, JAX, ONNX Runtime and SciPy. NaN: tinygrad, from two entries on."),
        ("a maximum of +inf", "NaN: here, as the softmax of such a row. +inf, the limit: PyTorch, JAX and SciPy."),
    ),
    "merge_attention": (
        ("two empty parts", "(0, -inf): here. NaN where their maximum is subtracted unguarded (vllm-project/vllm#39148)."),
        ("the empty part's marker", "-inf: here. +inf in some kernels, which then takes all the weight (Dao-AILab/flash-attention#2573)."),
        ("base of the log-sum-exp", "e: here. 2 in some engines; the two must not be mixed (vllm-project/vllm#52796)."),
    ),
    "attention": (
        ("causal with Lq != Lk",
         "Top left: PyTorch's is_causal, jax.nn, Pallas flash kernels, tinygrad. Bottom right: MLX, ONNX Attention with a cache, "
         "ONNX Runtime's GroupQueryAttention, vLLM, FlashAttention from 2.1 on."),
        ("a row that sees nothing",
         "0: PyTorch's SDPA, FlexAttention, ggml, ONNX Runtime's Attention, vLLM. NaN: JAX and MLX with an additive -inf, tinygrad, "
         "every plain softmax. The mean of all values: JAX and MLX with a boolean mask, and whoever masks with a large finite number."),
        ("Lk = 0",
         "Zeros: PyTorch's SDPA, JAX, MLX, tinygrad, vLLM. An error: FlexAttention, ONNX Runtime's Attention."),
        ("NaN in a masked key",
         "Ignored: PyTorch's CPU flash kernel, FlexAttention, JAX, MLX, GroupQueryAttention, ggml, vLLM. Spreads: PyTorch's math backend, "
         "ONNX Runtime's Attention, tinygrad. In a masked value of a tile that is visited, it spreads in all but ggml: 0 x NaN is NaN."),
        ("what hides a key",
         "-inf, so that it has no weight whatever the scores: here, PyTorch, ONNX's reference. A large finite number, so that a hidden "
         "key wins where the visible scores are low enough: added to the score in ONNX Runtime's Attention up to opset 24, its "
         "MultiHeadAttention, and JAX's Pallas kernels for decoding and for TPUs; in place of it in Pallas mha."),
        ("head map of grouped queries",
         "h // (Hq / Hkv) everywhere but in ring-attention-pytorch, which reads h % Hkv."),
        ("what a window of W lets through",
         "Keys before the current one: JAX's (left, right). The current one counted too: ONNX Runtime's local_window_size, "
         "sliding_window of Hugging Face models."),
        ("bias and softcap together",
         "The cap first: here. The bias first: one release of the ONNX operator (onnx/onnx#7867)."),
        ("bias and scale",
         "The bias is not scaled: here and nearly everywhere. Added before the scale multiplies: JAX's Pallas flash kernel for TPUs."),
        ("a mask and is_causal together",
         "Both apply: here, and in PyTorch's CPU flash kernel. PyTorch's math backend raises."),
        ("log-sum-exp of a row that sees nothing",
         "-inf: here. 0: PyTorch's CPU flash kernel."),
        ("float16 scores above 65504",
         "NaN, since scores are kept in float16: ONNX Runtime's Attention, MLX, tinygrad. Finite: PyTorch, JAX, ggml."),
    ),
    "attention_backward": (
        ("what is read",
         "The out and lse handed in: kernels after FlashAttention. Recomputed: automatic differentiation, which declares recomputes."),
        ("a row that sees nothing",
         "Gradients 0: here and in PyTorch's SDPA. Where such a row is the mean of all values, dV of hidden keys is not 0: JAX."),
        ("partial dK and dV",
         "Added up in the input format, block by block: PyTorch's 16-bit CPU kernel. In float32: kernels after FlashAttention."),
    ),
    "attention_packed": (
        ("a sequence without keys",
         "Output 0 and lse -inf at its own place: here. lse written to the padded place: one release (Dao-AILab/flash-attention#2842)."),
        ("offsets that end past the tokens",
         "Refused: here. Read past the end: one release (facebookresearch/xformers#1122)."),
    ),
    "attention_packed_backward": (
        ("a sequence without keys or without queries", "Gradients 0 at its own place: here."),
    ),
    "rope": (
        ("which coordinates are a pair",
         "(i, i + R/2): Llama in Hugging Face's library, GPT-NeoX, ggml mode 2, MLX with traditional=False, ONNX with interleaved=0. "
         "(2i, 2i + 1): the paper, GPT-J, Llama as Meta published it, DeepSeek, ggml mode 0, MLX with traditional=True."),
        ("where interleaved pairs are written",
         "Where they were read: here. Even coordinates first, odd ones behind: DeepSeek's own code, which turns q and k alike."),
        ("format of the angle",
         "float64: here. float32: nearly everywhere, off by 2^-24 of the angle, 1e-3 at position 131,071. The model's 16 bits: a fault "
         "that many have had (huggingface/transformers#29285, EleutherAI/gpt-neox#1003, sgl-project/sglang-jax#1472)."),
        ("yarn with mscale_all_dim 0",
         "m(factor, mscale): here, DeepSeek's code, vLLM. m(factor, 1), whatever mscale says: Hugging Face's library."),
        ("frequencies where part of the head turns",
         "Exponents are counted over rotary_dim: here and nearly everywhere. Over the head: a fault of one engine (pie-project/pie#603)."),
    ),
    "padded_positions": (
        ("with a cache",
         "The padding is counted over all columns and cut then: here, transformers. Cut first: a fault (mosaicml/examples#257)."),
    ),
    "write_kv": (
        ("a slot of -1",
         "Skipped: here, vLLM's reshape_and_cache. The last slot, as an index of NumPy or PyTorch: a fault (vllm-project/vllm#43810)."),
        ("a slot given twice",
         "The last token: here, assignment by index in NumPy, JAX's scatter on a CPU. Any of them: PyTorch's index_put_ with several "
         "threads, whose page says that it is undefined, and kernels without order."),
        ("the bits of NaN in a slot that no token names",
         "Kept: here, NumPy, PyTorch, JAX in float32 and float16. All the same NaN: JAX's scatter in bfloat16 on a CPU, through float32."),
        ("where results go",
         "New caches: here, JAX. In place: serving engines, which declare in_place."),
    ),
    "paged_attention": (
        ("table entries behind the length",
         "Never looked at: here, vLLM, FlashAttention. They must be pages of the pool: whoever gathers the whole table first, and then "
         "masks, which also adds 0 times what stands there (flashinfer-ai/flashinfer#942)."),
        ("an entry of -1",
         "Nothing: here, vLLM. The last page, as an index of NumPy or PyTorch; slot 0, where it is clamped (vllm-project/vllm#45324)."),
        ("padding queries", "Output 0, log-sum-exp -inf: here. Left as they were: kernels after FlashAttention, which declare it."),
        ("a window over pages",
         "The current token is not counted: here. Counted: sliding_window of Hugging Face models."),
    ),
    "mla_attention": (
        ("form", "Keys and values made for each head: Hugging Face's library, prefill in vLLM. Never made: decoding in vLLM, FlashMLA."),
        ("scale",
         "Given: here. Times the square of m(factor, mscale_all_dim) in a context stretched by yarn: DeepSeek's code, vLLM. That square "
         "left out: faults of several exporters (onnxruntime/mobius#548)."),
        ("value head size", "Dv may differ from Dn + Dr: here. Padded to it and cut again: where a kernel of equal sizes is called."),
    ),
    "filter_probabilities": (
        ("equal logits at the border of top-k", "The lowest index: here. All of them: Hugging Face's TopKLogitsWarper, vLLM. "
         "k of them: llama.cpp, jax.lax.top_k."),
        ("equal probabilities at the border of top-p", "The lowest index first: here. The highest: Hugging Face's TopPLogitsWarper, vLLM."),
        ("the token that crosses top_p", "Kept: here, and in all current libraries. Dropped: llama.cpp before ggml-org/llama.cpp#1953."),
        ("top_p = 1", "Everything kept: here, llama.cpp. Hugging Face and vLLM drop what a running sum from the least likely token on "
         "cannot tell from 0."),
        ("p equal to min_p times the largest", "Kept: here, llama.cpp. Hugging Face compares rounded products, and drops some."),
        ("top-k and top-p together", "Top-p of what top-k left, renormalised: here, Hugging Face, vLLM. Of the whole: FlashInfer's joint "
         "order."),
    ),
    "apply_penalties": (
        ("whom frequency and presence count", "The output alone: here, vLLM, the OpenAI API. The prompt too: llama.cpp's last tokens."),
    ),
    "sample": (
        ("which uniform stands for which token", "The inverse of the distribution function in the vocabulary's order: here. Sorted by "
         "probability: llama.cpp. An exponential race, one number a token: vLLM, torch.multinomial."),
    ),
    "speculative_verify": (
        ("the tie u q = p", "Rejected: here, and in the papers. Accepted: Hugging Face's _speculative_sampling, which compares u <= "
         "p / q."),
        ("rows that do not sum to 1 exactly", "Divided by their sum: here. Taken as they are: Hugging Face, vLLM, SGLang."),
        ("nothing left of a residual", "A draw from the target: here. NaN in Hugging Face's quotient by a sum of 0."),
    ),
    "tree_positions": (("position of a node", "Its depth: here, EAGLE, SGLang. Its index in the tree: a fault (lablup/mlxcel#1214)."),),
    "adamw_step": (
        ("bias correction", "On: here, PyTorch, optax, tinygrad, DeepSpeed. Off by default: MLX, 0.58 apart after 20 steps. Declared "
         "bias_correction."),
        ("where eps stands", "Outside the root, after the correction: here, PyTorch. Scaled by sqrt(1 - beta2^t): a fault "
         "(aiqm/torchani#261)."),
        ("gradients whose squares overflow",
         "v is inf and nothing moves: PyTorch's three forms from |g| = 1e20 on in float32. Not judged."),
        ("what decays", "The parameter as it was: here, PyTorch. As it became: faults (huggingface/transformers#14539, "
         "bitsandbytes-foundation/bitsandbytes#2010)."),
    ),
    "clip_grad_norm": (
        ("the divisor", "The norm: here, the paper. The norm and 1e-6: PyTorch. Declared clip_denominator."),
        ("a norm that overflows", "Taken of g over its largest: here. All gradients 0 without a word: PyTorch in float32. Not judged."),
        ("gradients of which one is NaN", "All NaN: here, PyTorch. As they were: who scales only where the factor is below 1. "
         "The norm alone is judged, which is NaN."),
    ),
    "schedule": (
        ("the first backward pass of 1F1B",
         "After min(m, p - s) forward passes on stage s: here, PipeDream's flush, Megatron-LM, PyTorch."),
        ("micro-batches that the stages do not divide, interleaved", "Refused: here, Megatron-LM. PyTorch's ScheduleInterleaved1F1B takes "
         "multiples of its rounds. Not judged."),
    ),
    "pipeline_loss": (
        ("the mean over micro-batches", "Over all tokens of the batch: here, torchtune, transformers since 4.46. The mean of each "
         "micro-batch's mean: faults (ml-explore/mlx-lm#1413, huggingface/transformers#34191)."),
    ),
    "pipeline_step": (
        ("who divides", "The loss, by all tokens, once: here. PyTorch's schedules divide gradients by the number of micro-batches unless "
         "scale_grads is False: twice, where the loss is normalised already (areal-project/AReaL#1273, pytorch/torchtitan#1732)."),
    ),
    "ring_attention": (
        ("how parts are merged", "By weights over their sum: here, FlashAttention's split-KV. By a sigmoid of the difference: "
         "ring-flash-attention. Numerator and row sum go on undivided: Liu et al. Declared merges_lse where a part that weighs nothing "
         "may round what is there."),
        ("parts on their way", "In float32: here. In the 16 bits of the inputs: faults (zhuzilin/ring-flash-attention#42)."),
        ("order under a causal mask", "Contiguous or zig-zag: here; PyTorch's load balancing is the zig-zag. Striped, token by token: "
         "Brandon et al. Not judged."),
        ("query heads in groups", "h // (Hq / Hkv): here, PyTorch, ring-flash-attention. h % Hkv: ring-attention-pytorch."),
    ),
    "ring_attention_backward": (
        ("out and log-sum-exp", "Of the whole row, saved by the forward pass or computed again: here, PyTorch, ring-flash-attention."),
        ("gradients of keys on their way", "They travel with the keys, R times round: here. Summed at the end, where keys were gathered: "
         "Llama 3. In 16 bits: declared gradient."),
    ),
    "sharded_cache_attention": (
        ("who holds a token",
         "Turns of `interleave` tokens: here, vLLM's decode context parallelism. Contiguous parts: one turn as long as a part."),
    ),
    "exchanged_norm_backward": (
        ("norm and exchange", "The norm before the exchange, so its gradient after it: here, VeOmni. Norms after the exchange, each rank "
         "its heads: no exchange between them."),
    ),
    "master_weight_step": (
        ("a gradient that overflowed", "Nothing changes, and the step is not counted: here, torch.amp. The schedule moves on all the same: "
         "faults (huggingface/accelerate#4242, NVIDIA-NeMo/Speech#3293)."),
        ("what is saved", "The master and the moments: here. The rounded weights alone: faults (TensorAuto/OpenTau#185, "
         "NVIDIA/Megatron-LM#1359)."),
    ),
    "next_token_targets": (
        ("who shifts", "The targets, once, and the loss not at all: here, torchtune, Megatron-LM. The loss itself: Hugging Face models, "
         "whose labels are the tokens as they stand."),
        ("the number for ignored", "-100: here, PyTorch, Hugging Face. A mask beside the labels: Megatron-LM."),
    ),
    "cross_entropy": (
        ("the mean over no target", "0: here, Liger, tinygrad. NaN: PyTorch, ONNX Runtime. Declared all_ignored."),
        ("the mean with weights", "Divided by the weights of the targets that count, not by their number: here, PyTorch."),
        ("a logit of -inf",
         "A class of probability 0, which costs nothing unless it is wanted: here, PyTorch. NaN in optax's one-hot form, "
         "0 times infinity. Declared impossible_class."),
    ),
    "cross_entropy_backward": (
        ("NaN in a row that is ignored",
         "Its gradient is 0: here. NaN, since the softmax of the row is multiplied with 0: PyTorch. Declared "
         "ignored_logits."),
        ("a mean over weight 0", "Gradients 0: here. NaN: PyTorch; but 0 where all targets are ignored. Declared all_ignored."),
        ("dloss", "One number, or one a row: here. Megatron-LM and Liger scale the logits' memory in place, so that a second backward pass "
         "reads what the first left."),
    ),
    "vocab_parallel_cross_entropy": (
        ("the smoothing term", "Over the whole vocabulary: here. Over each rank's own part: Megatron-LM before NVIDIA/Megatron-LM#737."),
        ("label smoothing of e", "(1 - e) for the label and e / V for every class: here, PyTorch. e V / (V - 1) in Megatron-LM and NeMo, "
         "which spread e over the other classes."),
    ),
    "distillation_loss": (
        ("beta of the mixture", "The teacher's share: here, the paper, TRL since huggingface/trl#3043. The student's: TRL before."),
        ("beta 0 and 1", "The two divergences: here, TRL. The formula, which is 0 there: implementations without a special case."),
        ("the mean", "Over rows, the sum over classes: here, and batchmean in PyTorch. Over rows and classes, V times too small: reduction "
         "mean of PyTorch's KLDivLoss (HikariTJU/LD#74)."),
        ("T^2", "On the soft term, so that gradients keep their size: here, Hinton et al."),
        ("a class of -inf for both", "Adds nothing: here. NaN: PyTorch's kl_div of two log-probabilities, and its gradient of "
         "KL(s, t), not that of KL(t, s). Declared impossible_class."),
    ),
    "distillation_loss_backward": (
        ("T", "The gradient of the soft term times T: T^2 of the loss, 1 / T of the logits: here, Hinton et al. Over T, without T^2: "
         "IntelLabs/distiller before #122, Liger's fused kernels, which leave the factor to the caller."),
        ("the teacher", "Given, without a gradient: here. Detached by hand where it shares the student's network: open-mmlab/mmrazor#100."),
        ("what a gradient of log-probabilities is", "Not this: less s times its sum it becomes that of the logits. Liger's JSD gives the "
         "former, for the log-softmax in front of it to finish."),
    ),
    "speculative_loop": (
        ("drafts past the end of the text", "Made and counted: here. The last draft cut to what is missing: Hugging Face's assisted "
         "generation, whose last number accepted may then be smaller."),
        ("a token that neither has cached", "The draft is fed the last accepted token and the bonus: here, Chen et al. 2023. The bonus "
         "alone: a fault (vllm-project/vllm#9730)."),
    ),
    "mtp_loop": (
        ("the hidden state of depth j", "That of depth j - 1: here, DeepSeek-V3. The model's own for every depth: a fault "
         "(vllm-project/vllm#36531)."),
    ),
    "mtp_loss": (
        ("which token head 1 is scored on", "The next one, head 1 being the main head: here, Gloeckle et al. 2024. The one after it, the "
         "main head apart: DeepSeek-V3, Megatron-LM."),
        ("weights", "One a head, 1 where none are given: here. One lambda over the number of heads: DeepSeek-V3."),
        ("a head that is scored on no token", "Adds 0: here. NaN, the mean over nothing: transformers' ForCausalLMLoss."),
    ),
    "kv_bytes": (
        ("heads that are charged", "Key and value heads: here, vLLM. Query heads: faults of several calculators (jranaraki/vllm-fit#2)."),
        ("a head size the config names", "Taken: here, vLLM. Hidden size over heads: a fault (LMCache/LMCache#2248)."),
        ("windowed layers", "Their window: here, and caches that drop what is hidden. The whole context: caches that keep everything."),
    ),
    "training_bytes": (
        ("gradients at stage 2", "16 bits, by default: here. 16 and a float32 copy: DeepSpeed's estimate, 18 N / R beside 2 N; "
         "optimizer_bytes=16 says so."),
        ("what stage 2 divides", "Gradients and optimizer states: here, the paper. The weights too: a fault (deepspeedai/DeepSpeed#5099)."),
    ),
    "model_flops": (
        ("causal attention", "The pairs there are, n (n + 1) / 2: here, verl since verl-project/verl#4959. "
         "All n^2: PaLM's appendix, Megatron-LM."),
        ("the table of the input", "Looked up: here, Kaplan et al. "
         "Charged as a product: 6 N with all parameters (tenstorrent/tt-metal#50114)."),
    ),
    "token_accuracy": (
        ("labels", "The token after the prediction: here, and where the library shifts. "
         "The token at it: callers who shift, and those who forgot."),
        ("equal logits", "The first: here, NumPy. Any: torch.argmax."),
    ),
    "route": (
        ("what is scored", "The softmax of all logits: here, the papers. Sigmoids with a bias: DeepSeek-V3's own (arXiv 2412.19437, "
         "equation 15), another operation."),
        ("equal probabilities", "The lowest index: here. Left open: transformers, by torch.topk. Declared route_ties."),
        ("one normalised gate", "1, and no gradient for the router: here. A point to know before training with k = 1 "
         "(jingyaogong/minimind#858)."),
        ("gates over their sum", "As asked: here. Always, the flag not passed on: a fault (flashinfer-ai/flashinfer#2889)."),
    ),
    "balance_loss": (
        ("f over T or T k", "T k, so that balance costs 1: here. T, so that it costs k: load_balancing_loss_func of transformers 5.24.0, "
         "2 for the balanced router of huggingface/transformers#43775. Declared balance_share."),
        ("padding", "Counts in neither factor: here, transformers. In f: a fault (NVIDIA/Megatron-LM#2121)."),
        ("no real token", "0: here. NaN, by 0 / 0: transformers. Not judged."),
    ),
    "balance_loss_backward": (
        ("the coefficient", "A factor: here. A switch, or thrown away with the loss: faults (NVIDIA-NeMo/Automodel#1408)."),
    ),
    "moe_layer": (
        ("who is dropped", "The last assignment in the order of choices, then tokens: here, GShard. The least probable one: an option of "
         "some trainers, another operation."),
        ("gates of what is left", "As they were: here, GShard. Raised to sum to 1 again: another operation."),
    ),
    "expert_parallel_backward": (
        ("an expert's gradient over ranks", "Whole where the expert is, divided like any other: here. Divided by the expert's own replicas "
         "only, and so too large by the number of ranks: faults (NVIDIA/Megatron-LM#5956, databricks/megablocks#20, "
         "deepspeedai/DeepSpeed#6546, pytorch/pytorch#160285)."),
    ),
    "quantize": (
        ("a half between two codes",
         "To even, then the zero point is added: here, ONNX Runtime's QuantizeLinear, PyTorch's fake quantization. To even of the sum "
         "with the zero point: PyTorch's quantize_per_tensor and quantize_per_channel, one code apart for odd zero "
         "points, so that a network trained with the first runs with the second (pytorch/pytorch#37188 meant to make them one). "
         "Away from 0: C's roundf, as in ggml."),
        ("the last symmetric code", "-127: here and in bitsandbytes. -128: PyTorch and ONNX, where it has no partner."),
        ("quotient or reciprocal", "PyTorch's quantize_per_tensor multiplies by 1/scale, bitsandbytes by 127/absmax: one code in a million "
         "is another, always within the margin."),
        ("a block of zeros", "Scale 1: here; ONNX Runtime's DynamicQuantizeLinear too. 0.1 in PyTorch's dynamic quantization; bitsandbytes "
         "returns a maximum of 0. Declared zero_scale."),
        ("NaN", "Refused: here. A code like any other in PyTorch. An infinity: zeros for its row in bitsandbytes."),
    ),
    "dequantize": (
        ("a zero point of 0", "0: here. Formats that store it less one wrap it around (ModelCloud/GPTQModel#2350)."),
    ),
    "quantized_matmul": (
        ("scales", "Of the columns and of the rows, both: here. ONNX's MatMulInteger and torch._int_mm leave them to the caller."),
    ),
    "dequantize_blockwise": (
        ("blocks", "Along the last axis, row by row: here. Through the whole array in memory order: bitsandbytes; the same where rows are "
         "whole blocks."),
        ("the half that comes first", "Codes of 4 bits: the low half in ONNX, and in `pack_int4`; the high half in bitsandbytes."),
    ),
    "prune_magnitude": (
        ("how many go", "floor(sparsity n): here. round(sparsity n): torch.nn.utils.prune."),
        ("equal magnitudes", "The lowest index goes first: here. Left open: torch.nn.utils.prune, by topk. By the rule of a quantile all "
         "go."),
    ),
    "prune_2_4": (
        ("equal magnitudes", "The lowest index stays: here. Left open by most: the choice of topk."),
    ),
    "gradual_masks": (
        ("what was pruned", "Stays pruned: here. Ranked anew at every step: schemes that let weights grow back, another operation."),
    ),
    **RANK_DIFFERENCES,
}  # fmt: skip
