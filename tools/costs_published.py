"""Published figures of costs beside our own: what each line says, what the formula gives, and why a line is not ours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from oracles import reference
from oracles.reference.costs_scaling import KAPLAN_EXPONENTS
from oracles.reference.model_config import ModelConfig
from oracles.reference.model_presets import device, preset
from oracles.reference.units import of_unit

from .costs_compression import int8_quantization, pruning
from .published_figure import CONTRADICTED, EXERCISE, FORMULA, QUOTED, Figure, told

GIB = 2**30


def figures() -> list[Figure]:
    """All published lines, in the order of their sections."""
    sections = (number_formats, training_memory, kv_cache, batched_decode, attention_traffic, scaling, decoding_and_pipelines,
                int8_quantization, pruning)
    return [figure for section in sections for figure in section()]


# Number formats ----------------------------------------------------------------------------------------------------------

FORMATS = (
    ("float32", "1/8/23", "3.403e+38", "1.175e-38", "1.192e-07"),
    ("float16", "1/5/10", "6.550e+04", "6.104e-05", "9.766e-04"),
    ("bfloat16", "1/8/7", "3.390e+38", "1.175e-38", "7.812e-03"),
)  # fmt: skip
GRADIENTS, SPREAD, LOSS_SCALE = 10_000, 1e-7, 1024.0


def number_formats() -> Iterator[Figure]:
    section = "number formats"
    half, brain, single = (reference.FloatFormat(name) for name in ("float16", "bfloat16", "float32"))
    for name, bits, largest, tiny, eps in FORMATS:
        fmt = reference.FloatFormat(name)
        exponent_bits = round(math.log2(2 - math.log2(fmt.tiny))) + 1           # tiny = 2^(2 - 2^(bits - 1))
        yield Figure(section, f"{name} sign/exponent/fraction bits", bits, f"1/{exponent_bits}/{fmt.fraction_bits}")
        for what, said, value in (("max", largest, fmt.max), ("smallest normal", tiny, fmt.tiny), ("eps", eps, fmt.eps)):
            yield Figure(section, f"{name} {what}", said, f"{value:.3e}")
    lines = (
        ("float16 max", "65504", f"{half.max:.0f}"),
        ("70000 in float16", "inf", f"{half.round(70000.0)}"),
        ("70000 in bfloat16", "70144", f"{brain.round(70000.0):.0f}"),
        ("1 + 2^-10 in float16", "1.0009765625", f"{half.round(1 + 2.0**-10)}"),
        ("1 + 2^-10 in bfloat16", "1.0", f"{brain.round(1 + 2.0**-10)}"),
        ("2048 + 1 in float16", "2048", f"{half.round(2049.0):.0f}"),
        ("2048 + 1 in float32", "2049", f"{single.round(2049.0):.0f}"),
        ("1e-8 in float16", "0", f"{half.round(1e-8):.0f}"),
        ("smallest subnormal of float16", "5.96e-8", f"{half.smallest:.2e}".replace("e-0", "e-")),
        ("1e-8 x 1024 in float16", "1.025e-05", f"{half.round(1e-8 * 1024):.3e}"),
        ("0.5 + 1e-6 in float16", "0.5", f"{half.round(0.5 + 1e-6)}"),
    )
    yield from (Figure(section, *line) for line in lines)
    for scale in (1.0, LOSS_SCALE):
        drawn, expected = surviving_gradients(scale)
        yield Figure(section, f"share of {GRADIENTS:,} gradients N(0, (1e-7)^2) that float16 keeps above 0, scaled by {scale:.0f}", "",
                     f"{drawn:.4f} drawn, {expected:.4f} by the normal law", EXERCISE)


def surviving_gradients(scale: float) -> tuple[float, float]:
    """The share that rounds to something else than 0: of a drawn sample, and by the law, P(|x| > half the smallest subnormal)."""
    half = reference.FloatFormat("float16")
    drawn = np.random.default_rng(0).standard_normal(GRADIENTS) * SPREAD
    kept = float((half.round(drawn * scale) != 0).mean())
    return kept, math.erfc(half.smallest / 2 / (SPREAD * scale) / math.sqrt(2))


# Training memory ---------------------------------------------------------------------------------------------------------

N7, N70 = 7 * 10**9, 70 * 10**9


def _state(parameters: int, stage: int, world: int) -> int:
    return int(reference.training_bytes(parameters, stage=stage, world=world))


def training_memory() -> Iterator[Figure]:
    section = "training memory"
    layout, gib, gb = reference.Layout(), _gib, _gb
    yield Figure(section, "weights + gradients + masters + two moments, bytes a parameter", "16", f"{layout.total}")
    yield Figure(section, "7e9 parameters, inference, GiB", "13.0", gib(layout.weights * N7))
    yield Figure(section, "7e9, training on one device, GiB", "104.3", gib(_state(N7, 0, 1)))
    yield Figure(section, "7e9, training on one device, GB", "112", gb(_state(N7, 0, 1), 0))
    for stage, said in ((1, "35.9"), (2, "24.4"), (3, "13.0")):
        yield Figure(section, f"7e9, ZeRO-{stage}, a device of 8, GiB", said, gib(_state(N7, stage, 8)))
    for stage, said in ((1, "280"), (2, "140")):
        yield Figure(section, f"70e9, ZeRO-{stage}: what stays replicated on devices of 80 GB, GB", said, gb(_state(N70, stage, 2**60), 0))
    yield Figure(section, "70e9, ZeRO-3: devices of 80 GB", "14", f"{-(-_state(N70, 3, 1) // of_unit(80, 'GB'))}",
                 reason="14 x 80 GB are exactly 16 N: no margin for activations or buffers")
    yield Figure(section, "LoRA on 7e9, 0.5 % trainable: 2 N + 16 n, GB", "14.56", gb(reference.lora_bytes(N7, N7 // 200), 2))
    yield Figure(section, "LoRA beside: everything trained, GB", "112", gb(_state(N7, 0, 1), 0))
    yield Figure(section, "100e9 parameters x 2 bytes, GB", "200", gb(2 * 100 * 10**9, 0))
    yield Figure(section, "200 GB against one H200, GB", "141", gb(device("h200").memory_bytes, 0))
    yield Figure(section, "H200 TFLOPS, 16 bits", "1,979", f"{device('h200').flops_per_second / 1e12:,.1f}", CONTRADICTED,
                 "listed with sparsity; the peak of dense products is half of it")
    yield Figure(section, "H200 TFLOPS, 8 bits", "3,958", f"{2 * device('h200').flops_per_second / 1e12:,.1f}", CONTRADICTED,
                 "listed with sparsity; the peak of dense products is half of it")
    yield Figure(section, "H200, TB/s", "4.8", f"{device('h200').bytes_per_second / 1e12:.1f}")
    P, R = 1000, 8
    for stage, share in ((0, Fraction(2)), (1, Fraction(2)), (2, Fraction(2)), (3, Fraction(3))):
        holds = reference.zero_traffic(P, stage=stage, world=R) == share * P * (R - 1) / R
        yield Figure(section, f"traffic of a rank and step, stage {stage} (P = {P}, R = {R})", f"{share}P(R-1)/R", told(holds),
                     FORMULA)
    for stage, limit, reached in ((1, "4x", 16 / (4 + 12 / 8)), (2, "8x", 16 / (2 + 14 / 8))):
        yield Figure(section, f"ZeRO-{stage} saves", limit, f"{reached:.1f}x", CONTRADICTED, "the limit for many devices; ours: 8 devices")


# Caches ------------------------------------------------------------------------------------------------------------------

def _cache(layers: int, kv_heads: int, query_heads: int = 32) -> ModelConfig:
    return ModelConfig(hidden=128 * query_heads, layers=layers, query_heads=query_heads, kv_heads=kv_heads, head_dim=128)


KV_TABLE = ((32, "512", "2.00", "16.00", "64.00"), (8, "128", "0.50", "4.00", "16.00"))
KV_LENGTHS = (("4k", 4096), ("32k", 32768), ("128k", 131072))


def kv_cache() -> Iterator[Figure]:
    section = "KV cache"

    def held(config: ModelConfig, tokens: int) -> int:
        return int(reference.kv_bytes(tokens, config=config))

    for kv_heads, per_token, *table in KV_TABLE:
        config, what = _cache(32, kv_heads), f"32 layers, {kv_heads} kv heads of 128, 2 bytes"
        yield Figure(section, f"{what}: a token, KiB", per_token, f"{held(config, 1) / 2**10:.0f}")
        for (label, tokens), said in zip(KV_LENGTHS, table):
            yield Figure(section, f"{what}: {label}, GiB", said, _gib(held(config, tokens), 2))
    for weights, kv_heads, size, said in ((N7, 32, "4.00", "16"), (8 * 10**9, 8, "1.00", "65")):
        sequence = held(_cache(32, kv_heads), 8192)
        yield Figure(section, f"one of 8,192 tokens, {kv_heads} kv heads, GiB", size, _gib(sequence, 2))
        yield Figure(section, f"such at once in 80 GiB beside 2 x {weights:.0e} bytes", said,
                     f"{reference.largest_batch(80 * GIB, 2 * weights, sequence)}")
    yield Figure(section, "24 query heads, 2 kv heads: less KV, %", "91.7", f"{100 * (1 - 2 / 24):.1f}")
    grouped, full = (held(_cache(1, kv_heads), 1) for kv_heads in (8, 32))
    yield Figure(section, "32 query heads, 8 kv heads: times less", "4", f"{full / grouped:.0f}")
    latent = preset("deepseek-v2").config
    yield Figure(section, "latent attention of DeepSeek-V2, numbers a token and layer", "576", f"{reference.kv_elements(latent)}")
    less = f"{2 * 128 * 128 / reference.kv_elements(latent):.1f}x"
    yield Figure(section, "less than full attention of 128 heads of 128", "56.9x", less)
    yield Figure(section, "less than its baselines", "5-13x", "", QUOTED, f"other baselines than full attention, which gives {less}")
    plain, llama = _cache(80, 64, 64), preset("llama-2-70b").config
    yield Figure(section, "Llama-2 70B at 4,096 tokens, GB", "9", _gb(held(llama, 4096), 2), CONTRADICTED,
                 "follows from no count: neither with the model's 8 kv heads, ours, nor without GQA, the next two lines")
    yield Figure(section, "the same without GQA, GB", "10.7", _gb(held(plain, 4096), 1))
    yield Figure(section, "the same without GQA, GiB", "10.0", _gib(held(plain, 4096)))
    yield Figure(section, "the same with 8 kv heads, GB", "1.34", _gb(held(llama, 4096), 2))
    long = held(preset("llama-3-70b").config, 131072)
    yield Figure(section, "70B (80 layers, 8 kv heads of 128) at 128k, GiB", "40", _gib(long, 0))
    yield Figure(section, "int4 weights of 70e9, GB", "35", _gb(70 * 10**9 // 2, 0))
    left = of_unit(80, "GB") - 35 * 10**9 - long
    yield Figure(section, "does one such sequence fit beside them in 80 GB?", "", f"{'yes' if left >= 0 else 'no'}, {_gb(left, 2)} GB left",
                 EXERCISE, "scales of the weights, activations and workspaces left out")
    idle = [waste.paged_slots - waste.tokens for n in range(1, 65) for waste in [reference.paging_waste([n], block_size=16, max_length=64)]]
    yield Figure(section, "waste of a sequence of 1 to 64 tokens in pages of 16", "< one page", told(max(idle) < 16), FORMULA)


# Decoding ----------------------------------------------------------------------------------------------------------------

DECODE = (
    (1, "8.27", "120.9", "121", "8268.4"), (2, "8.54", "117.1", "234", "4268.4"), (4, "9.07", "110.2", "441", "2268.4"),
    (8, "10.15", "98.5", "788", "1268.4"), (16, "12.29", "81.3", "1301", "768.4"), (32, "16.59", "60.3", "1929", "518.4"),
    (64, "25.18", "39.7", "2542", "393.4"), (128, "42.36", "23.6", "3022", "330.9"), (256, "76.72", "13.0", "3337", "299.7"),
)  # fmt: skip
DECODE_WEIGHTS, DECODE_KV, DECODE_BANDWIDTH = 16 * 10**9, 131072, 2.0e12
ROOM = ((80 * GIB, "80 GiB", ("260", "65", "16")), (80 * 10**9, "80e9 bytes", ("238", "59", "14")))


def batched_decode() -> Iterator[Figure]:
    section = "batched decode"
    steps = reference.decode_steps([row[0] for row in DECODE], weight_bytes=DECODE_WEIGHTS, kv_bytes=DECODE_KV * 4096,
                                   bytes_per_second=DECODE_BANDWIDTH)
    for step, (batch, ms, user, total, per_million) in zip(steps, DECODE):
        columns = (("step, ms", ms, f"{1e3 * step.seconds:.2f}"), ("tok/s a user", user, f"{step.user_tokens:.1f}"),
                   ("tok/s in all", total, f"{step.total_tokens:.0f}"),
                   ("device-seconds for 1M tokens", per_million, f"{step.seconds_per_million:.1f}"))
        yield from (Figure(section, f"batch {batch}: {what}", said, ours) for what, said, ours in columns)
    for memory, label, row in ROOM:
        for tokens, said in zip((2048, 8192, 32768), row):
            batch = reference.largest_batch(memory, DECODE_WEIGHTS, DECODE_KV * tokens)
            step, = reference.decode_steps([batch], weight_bytes=DECODE_WEIGHTS, kv_bytes=DECODE_KV * tokens,
                                           bytes_per_second=DECODE_BANDWIDTH)
            yield Figure(section, f"largest batch at {tokens:,} tokens in {label}", said, f"{batch}")
            yield Figure(section, f"tok/s in all there ({label}, {tokens:,} tokens)", "", f"{step.total_tokens:.0f}", EXERCISE,
                         "activations and workspaces left out")


def _gib(count: int, digits: int = 1) -> str:
    return reference.show_bytes(count, "GiB", digits=digits).removesuffix(" GiB")


def _gb(count: int, digits: int = 1) -> str:
    return reference.show_bytes(count, "GB", digits=digits).removesuffix(" GB")


# Attention ---------------------------------------------------------------------------------------------------------------

def attention_traffic() -> Iterator[Figure]:
    section = "attention"
    ours = reference.memory_traffic(64, 16, 1024, 64, sram_bytes=192 * 1024, element_bytes=2)
    what = "GPT-2 medium, 1,024 tokens, 16 heads of 64, batch 64, forward and backward"
    no_count = "a multiply-add counted as two gives 12 B H N^2 d, in tiles 14; no count of one layer gives the quoted figure"
    yield Figure(section, f"{what}: 12 B H N^2 d, GFLOP", "824.6", f"{ours.standard_flops / 1e9:.1f}")
    yield Figure(section, f"{what}: tiled, GFLOP", "962.1", f"{ours.tiled_flops / 1e9:.1f}")
    for name, flops, moved, seconds, gflop, gb in (("standard", "66.6", "40.3", "41.7", ours.standard_flops, ours.standard_hbm_bytes),
                                                   ("FlashAttention", "75.2", "4.4", "7.3", ours.tiled_flops, ours.tiled_hbm_bytes)):
        yield Figure(section, f"{name}, GFLOP", flops, f"{gflop / 1e9:.1f}", CONTRADICTED, no_count)
        yield Figure(section, f"{name}, HBM traffic, GB", moved, f"{gb / 1e9:.1f}", CONTRADICTED,
                     "ours: one layer with 16-bit elements and 192 KiB on chip, by the algorithms' own reads and writes; the quoted "
                     "measurement does not name what it counts")
        yield Figure(section, f"{name}, ms on an A100", seconds, "", QUOTED, "a measurement")
    entries = reference.memory_traffic(1, 1, 4096, 64, sram_bytes=192 * 1024, element_bytes=4).score_entries_per_head
    yield Figure(section, "N = 4096: entries of the scores, a head", "16,777,216", f"{entries:,}")
    yield Figure(section, "N = 4096: entries of the scores, a head, another line", "64M", f"{entries:,}", CONTRADICTED,
                 f"64 is its size in MiB at 4 bytes: {entries * 4 // 2**20} MiB")
    yield Figure(section, "SRAM smaller than HBM by (80 GB / 20 MB)", "20,000x", f"{of_unit(80, 'GB') // of_unit(20, 'MB'):,}x",
                 CONTRADICTED, "its own figures divide to 4,000")
    yield Figure(section, "SRAM faster than HBM by (20 / 3 TB/s)", "10-100x", f"{20 / 3:.1f}x", CONTRADICTED,
                 "its own figures divide to 6.7")
    yield Figure(section, "context beside a 4,096 in the code", "8k", f"{4096 // 1024}k", CONTRADICTED, "the comment does not fit its code")
    differ, all_of_them, worst = tiled_against_plain()
    yield Figure(section, "tiled attention in float32 against plain", "bit for bit identical", f"{differ} of {all_of_them} outputs differ",
                 CONTRADICTED, f"equal in real arithmetic only: rounded in another order, here up to {worst:.1e} apart (N = 128, d = 32)")


def tiled_against_plain() -> tuple[int, int, float]:
    """Outputs of tiled attention that differ from plain attention with all in float32, of how many, and the largest difference."""
    g = np.random.default_rng(0)
    q, k, v = (g.standard_normal((1, 1, 128, 32)).astype(np.float32) for _ in range(3))
    tiled, _ = reference.flash_attention(q, k, v, causal=None, block_q=32, block_k=32)
    s = (q @ k.swapaxes(-1, -2)) * np.float32(1 / math.sqrt(32))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    plain = (p / p.sum(axis=-1, keepdims=True)) @ v
    return int((tiled != plain).sum()), plain.size, float(np.abs(tiled - plain).max())


# Scaling -----------------------------------------------------------------------------------------------------------------

def scaling() -> Iterator[Figure]:
    section = "scaling"
    yield Figure(section, "training FLOPs, N = 8e9, D = 15e12", "6 N D", told(reference.training_flops(8e9, 15e12) == 6 * 8e9 * 15e12),
                 FORMULA)
    for name, said in (("N", "0.076"), ("D", "0.095"), ("C", "0.050")):
        yield Figure(section, f"Kaplan exponent of {name}", said, f"{KAPLAN_EXPONENTS[name]:.3f}", QUOTED, "a fit to measurements")
    loss = 1.69 + 406.4 / 70e9**0.34 + 410.7 / 1.4e12**0.28
    yield Figure(section, "Chinchilla's loss at 70e9, 1.4e12", "1.69 + 406.4/N^0.34 + 410.7/D^0.28",
                 told(reference.chinchilla_loss(70e9, 1.4e12) == loss), FORMULA, "the constants are a fit to measurements")
    yield Figure(section, "Chinchilla D = 20 N, 70B, T tokens", "1.4", f"{reference.chinchilla_tokens(70e9) / 1e12:.1f}")
    yield Figure(section, "GPT-3 175B wants, T tokens", "3.5", f"{reference.chinchilla_tokens(175e9) / 1e12:.1f}")
    yield Figure(section, "GPT-3 175B wants, T tokens, another line", "3.7", f"{reference.chinchilla_tokens(175e9) / 1e12:.1f}",
                 CONTRADICTED, "3.7 is the paper's own fit (arXiv 2203.15556, table 3), not 20 N")
    yield Figure(section, "GPT-3 175B had, B tokens", "300", "", QUOTED, "from its paper (arXiv 2005.14165)")
    wanted = reference.chinchilla_tokens(8e9)
    yield Figure(section, "8B wants, B tokens", "160", f"{wanted / 1e9:.0f}")
    yield Figure(section, "8B at 15T tokens: times over", "94", f"{15e12 / wanted:.0f}")
    yield Figure(section, "15T tokens, T words", "11.25", f"{reference.words(15e12) / 1e12:.2f}",
                 reason="0.75 words a token is a rule of thumb")
    yield Figure(section, "H100, FLOP/s of dense bf16", "1e15", f"{device('h100').flops_per_second:.0e}".replace("e+", "e"),
                 reason="rounded from 989.5e12")
    yield Figure(section, "1e25 FLOPs at 1e15, device-seconds", "1e10", f"{1e25 / 1e15:.0e}".replace("e+", "e"),
                 reason="at the peak throughout")
    mixtral = reference.parameter_count(preset("mixtral-8x7b").config)
    yield Figure(section, "Mixtral 8x7B in all, B parameters", "47", f"{mixtral.total / 1e9:.0f}")
    yield Figure(section, "Mixtral 8x7B active, B parameters", "13", f"{mixtral.active / 1e9:.0f}")


# Speculation, pipelines, serving ------------------------------------------------------------------------------------------

def decoding_and_pipelines() -> Iterator[Figure]:
    section = "speculation, pipelines, serving"
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    yield Figure(section, "acceptance of one step, dyadic p and q", "1 - TV(p, q)",
                 told(float(reference.acceptance_rate(p, q)) == 1.0 - float(np.abs(p - q).sum()) / 2), FORMULA)
    a, k = 0.5, 3
    yield Figure(section, "tokens of a verification, a = 1/2, k = 3", "(1 - a^(k+1)) / (1 - a)",
                 told(reference.expected_tokens(a, k) == (1 - a ** (k + 1)) / (1 - a)), FORMULA)
    yield Figure(section, "DeepSeek-V3 predicts, tokens", "2", "", QUOTED, "its config's one head beside the main one (arXiv 2412.19437)")
    bubbles = all(reference.pipeline_bubble(s, m) == Fraction(s - 1, m + s - 1) for s in (1, 4, 8) for m in (1, 8, 32))
    yield Figure(section, "idle share of GPipe and 1F1B, 1 to 8 stages", "(p - 1) / (m + p - 1)", told(bubbles), FORMULA)
    times = reference.latency(queue=0.5, prefill=0.25, first_step=0.125, tpot=0.125, tokens=9)
    yield Figure(section, "TTFT", "queue + prefill + first step", told(times.ttft == 0.5 + 0.25 + 0.125), FORMULA)
    yield Figure(section, "TTLT, n = 9", "TTFT + (n - 1) TPOT", told(times.ttlt == times.ttft + 8 * 0.125), FORMULA)
    h200 = device("h200")
    ridge = reference.ridge_point(h200.flops_per_second, h200.bytes_per_second)
    yield Figure(section, "ridge point of an H200", "peak FLOP/s / bandwidth", told(ridge == 989.5e12 / 4.8e12), FORMULA)
