"""The zoo: real faults as mutants that must die, legal variants that must live. One module a family; `ZOO_MODULES` lists them.

A new fault goes into the module of its family with the address of its report; a new legal form into `variants_*.py`.
"""

# Module in this folder, and the families of faults it holds.
ZOO_MODULES: dict[str, tuple[str, ...]] = {
    "softmax": ("softmax",),
    "masking": ("masking",),
    "attention_forward": ("attention-forward",),
    "attention_backward": ("attention-backward",),
    "gqa": ("gqa",),
    "rope": ("rope", "kv-cache"),
    "write_kv": ("kv-cache",),
    "paged_attention": ("paged-attention",),
    "mla": ("mla",),
    "paged_allocator": ("paged-allocator",),
    "prefix_cache": ("prefix-cache",),
    "kv_cache": ("kv-cache",),
    "guided": ("guided",),
    "variants_guided": ("guided",),
    "variants_softmax": ("softmax",),
    "variants_masking": ("masking",),
    "variants_forward": ("attention-forward",),
    "variants_formats": ("attention-forward",),
    "variants_backward": ("attention-backward",),
    "variants_gqa": ("gqa",),
    "variants_rope": ("rope", "kv-cache"),
    "variants_pages": ("paged-attention",),
    "variants_latents": ("mla",),
    "variants_allocator": ("paged-allocator", "prefix-cache"),
    "variants_kv_cache": ("kv-cache",),
    "sampling": ("sampling",),
    "speculative": ("speculative",),
    "mtp": ("mtp",),
    "loops": ("speculative", "mtp"),
    "variants_sampling": ("sampling",),
    "variants_speculative": ("speculative", "mtp"),
    "variants_loops": ("speculative", "mtp"),
    "metrics": ("metrics",),
    "variants_metrics": ("metrics",),
    "loss": ("loss",),
    "distillation": ("distillation",),
    "variants_losses": ("loss", "distillation"),
    "optimizer": ("optimizer",),
    "variants_optimizers": ("optimizer",),
    "mixed_precision": ("mixed-precision",),
    "variants_mixed_precision": ("mixed-precision",),
    "quantization": ("quantization",),
    "pruning": ("pruning",),
    "variants_quantization": ("quantization", "pruning"),
}

__all__ = ["ZOO_MODULES"]
