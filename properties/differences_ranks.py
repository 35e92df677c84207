"""Differences of what is done on ranks: where libraries answer otherwise than the oracles of collectives, data and tensor parallelism."""

from __future__ import annotations

# operation: (point, who answers what)
RANK_DIFFERENCES: dict[str, tuple[tuple[str, str], ...]] = {
    "all_reduce": (
        ("a length that is no multiple of R", "Any: here, MPI, gloo, NCCL. A fault of hand-written two-shot kernels, right on rank 0 alone "
         "(NVIDIA/FasterTransformer#672)."),
        ("mean", "The sum, divided by R once: here. AVG in torch.distributed is NCCL's alone; gloo has none."),
    ),
    "reduce_scatter": (
        ("a length that is no multiple of R", "Refused: here, and in torch.distributed. Filled up by the caller: FSDP, DeepSpeed."),
    ),
    "all_gather": (
        ("lengths that differ", "Allowed: here, MPI_Allgatherv. Refused: all_gather_into_tensor of torch.distributed."),
    ),
    "bucketed_all_reduce": (
        ("the order of buckets", "That in which rank 0's gradients became ready: here, PyTorch's DistributedDataParallel after its first "
         "step. Reverse order of the parameters: its first step."),
        ("what the gradients of ranks become", "Their mean: here, DistributedDataParallel, JAX's pmean. Their sum: JAX's psum."),
    ),
    "accumulate_gradients": (
        ("what a micro-batch weighs", "Its tokens: here, and in transformers since 4.46 (huggingface/transformers#34191). All the same: "
         "a mean of means, before (ml-explore/mlx-lm#1413, meta-pytorch/torchtune#1875)."),
        ("what a rank weighs", "Its tokens: here. All the same, unless the loss is multiplied by R: wherever DistributedDataParallel "
         "averages (huggingface/transformers#34373)."),
        ("no token at all", "0: here. NaN, as 0 / 0: where the count is not guarded."),
    ),
    "tied_gradients": (
        ("when copies are added", "Before the data-parallel reduction: here. After it: right only where nothing is scattered "
         "(NVIDIA/Megatron-LM#844)."),
    ),
    "flat_layout": (
        ("alignment of each array", "1 unless asked for: here. Of 2 or more elements: DeepSpeed, for NCCL's alignment of 4 bytes; of 64 "
         "elements: Megatron-LM's distributed optimizer."),
        ("what fills it up", "0 at the end: here. Between the arrays too: Megatron-LM."),
    ),
    "column_parallel": (
        ("the layout of W", "(inputs, outputs): here, JAX. (outputs, inputs): PyTorch, Megatron-LM, where columns are rows of the tensor."),
    ),
    "row_parallel": (
        ("the bias", "Added once, behind the all_reduce: here, Megatron-LM. On rank 0 before it: vLLM."),
    ),
    "shard_qkv": (
        ("fewer kv heads than ranks", "Each on R / Hkv ranks: here, vLLM. Neither divides the other: refused here and by vLLM."),
        ("a fused weight", "Cut head by head, by its layout: here. Into equal slices: a fault (deepspeedai/DeepSpeed#3844)."),
    ),
    "vocab_parallel_embedding": (
        ("a vocabulary that is no multiple of R", "Parts of ceil(V / R) rows: here. Filled up to a multiple of 64 R or 128 R first: vLLM, "
         "Megatron-LM. V // R rows: a fault (huggingface/text-generation-inference#1463)."),
    ),
    "vocab_parallel_cross_entropy_backward": (
        ("a rank without the target", "p: here, Megatron-LM. 0, for a gather has no gradient: a fault (modelscope/ms-swift#9947)."),
    ),
    "norm_backward_sharded": (
        ("the weight's gradient", "A sum over ranks, for tokens and for heads: here. Left to the caller: Megatron-LM marks such weights as "
         "sequence parallel, and reduces what is marked (NVIDIA/Megatron-LM#1446, NVIDIA/Megatron-LM#7452)."),
    ),
    "clip_grad_norm_sharded": (
        ("what is replicated", "Counts once: here, Megatron-LM, DTensor. Once a rank: a fault (ROCm/TransformerEngine#715)."),
        ("the denominator", "The norm: here. The norm and 1e-6: PyTorch, Megatron-LM."),
    ),
}  # fmt: skip
