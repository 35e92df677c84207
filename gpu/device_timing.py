"""Times of the ports on a device, beside PyTorch in the same run and the bandwidth of a copy; and their repeats, bit for bit.

    python -m oracles.gpu.device_timing [--json FILE]               a table of medians
    python -m oracles.gpu.device_timing --small --repeats 250       small shapes, the same bits each time, no times
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from .flash_attention import flash_attention
from .flash_attention_backward import flash_attention_backward
from .kernel import device
from .matmul_bf16 import matmul_bf16
from .merge_attention import merge_attention
from .softmax import log_sum_exp, softmax
from .timed_call import Call
from .timed_compression import compression_calls
from .timed_decoding import cache_calls, decoding_calls

RUNS, WARM_UP = 30, 5
GIGA = 1e9


def calls(cupy: Any, torch: Any, *, small: bool) -> list[Call]:
    """Every port, and what PyTorch has for the same job on the same numbers (None without PyTorch)."""

    def arrays(*shape: int, dtype: str = "float16") -> tuple[Any, Any]:
        x = cupy.random.standard_normal(shape, dtype=cupy.float32).astype(dtype)
        return x, None if torch is None else torch.from_dlpack(x)

    rows, columns = (3, 1100) if small else (8192, 8192)
    x, x_torch = arrays(rows, columns, dtype="float32")
    B, H, L, D = (1, 2, 70, 64) if small else (4, 16, 2048, 64)
    (q, q_torch), (k, k_torch), (v, v_torch), (dout, dout_torch) = (arrays(B, H, L, D) for _ in range(4))
    out, lse = flash_attention(q, k, v, causal="top_left")
    heads = {"q": q, "k": k, "v": v, "causal": "top_left"}
    biased = heads | {"bias": arrays(H, 1, L)[0]}
    biased_out, biased_lse = flash_attention(**biased)
    sdpa = None if torch is None else torch.nn.functional.scaled_dot_product_attention
    flops = 4 * B * H * L * L * D / 2                                           # causal: half the scores
    n = 72 if small else 4096
    a, b = _bfloat16(cupy, n, n), _bfloat16(cupy, n, n)
    found = [
        Call("softmax float32", lambda: softmax(x), torch and (lambda: torch.softmax(x_torch, -1)), 2 * x.nbytes, "GB/s"),
        Call("log_sum_exp float32", lambda: log_sum_exp(x), torch and (lambda: torch.logsumexp(x_torch, -1)), x.nbytes, "GB/s"),
        Call("merge_attention float16", lambda: merge_attention(out, lse, out, lse), None, 3 * (out.nbytes + lse.nbytes), "GB/s"),
        Call("flash_attention float16 causal", lambda: flash_attention(**heads),
             sdpa and (lambda: sdpa(q_torch, k_torch, v_torch, is_causal=True)), flops, "GFLOP/s"),
        Call("flash_attention 4 splits", lambda: flash_attention(**heads, splits=4), None, flops, "GFLOP/s"),
        Call("flash_attention_backward float16 causal", lambda: flash_attention_backward(**heads, out=out, lse=lse, dout=dout),
             torch and _torch_backward(torch, q_torch, k_torch, v_torch, dout_torch), 2.5 * flops, "GFLOP/s"),
        Call("flash_attention_backward, bias (H, 1, L)",
             lambda: flash_attention_backward(**biased, out=biased_out, lse=biased_lse, dout=dout), None, 3.5 * flops, "GFLOP/s"),
        Call("matmul bfloat16", lambda: matmul_bf16(a, b), torch and _torch_product(torch, n), 2 * n**3, "GFLOP/s"),
    ]  # fmt: skip
    return [*found, *cache_calls(cupy, torch, small=small), *decoding_calls(cupy, small=small),
            *compression_calls(cupy, torch, small=small)]


def _bfloat16(cupy: Any, *shape: int) -> Any:
    import ml_dtypes

    x = np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)
    return cupy.asarray(x.view(np.uint16)).view(ml_dtypes.bfloat16)


def _torch_product(torch: Any, n: int) -> Callable[[], Any]:
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: a @ b.T


def _torch_backward(torch: Any, q: Any, k: Any, v: Any, dout: Any) -> Callable[[], Any]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def median_ms(cupy: Any, call: Callable[[], Any]) -> float:
    """Median milliseconds between CUDA events around a call; on the default stream, which PyTorch uses too."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(RUNS):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop))
    return float(statistics.median(times))


@dataclass(frozen=True)
class Row:
    """One line of the table; None where there is nothing to compare with, error where a call failed."""

    name: str
    ms: float | None = None
    rate: float | None = None
    unit: str = ""
    torch_ms: float | None = None
    of_copy: float | None = None
    error: str = ""


def copy_bandwidth(cupy: Any) -> float:
    """GB/s read and written by a copy of 1 GiB on the device."""
    source = cupy.zeros(2**28, cupy.float32)
    target = cupy.empty_like(source)
    return float(2 * source.nbytes / median_ms(cupy, lambda: cupy.copyto(target, source)) * 1e3 / GIGA)


def measure(cupy: Any, torch: Any) -> dict[str, Any]:
    """The environment, the bandwidth of a copy, and a row for each port."""
    copy, rows = copy_bandwidth(cupy), []
    for call in calls(cupy, torch, small=False):
        try:
            ms = median_ms(cupy, call.port)
            rate = call.work / ms * 1e3 / GIGA
            beside = None if call.torch is None else median_ms(cupy, call.torch)
            rows.append(Row(call.name, ms, rate, call.unit, beside, rate / copy if call.unit == "GB/s" else None))
        except Exception as error:                                              # one row less, not one table less
            rows.append(Row(call.name, error=f"{type(error).__name__}: {error}"))
    chip = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    versions = {"driver": cupy.cuda.runtime.driverGetVersion(), "runtime": cupy.cuda.runtime.runtimeGetVersion(), "cupy": cupy.__version__,
                "torch": None if torch is None else torch.__version__, "numpy": np.__version__, "python": sys.version.split()[0]}
    return {"date": date.today().isoformat(), "chip": chip, "versions": versions, "copy_GB_s": copy, "rows": [asdict(row) for row in rows]}


def table(found: dict[str, Any]) -> str:
    """What `measure` found, as the Markdown table of DEVICE.md."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [f"{found['date']}, {found['chip']}; {versions}; copy {found['copy_GB_s']:.0f} GB/s", "",
             "| port | median ms | rate | share of copy | PyTorch ms |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        if row["error"]:
            lines.append(f"| {row['name']} | {row['error']} | | | |")
            continue
        share, beside = ("" if row[key] is None else f"{row[key]:.3g}" for key in ("of_copy", "torch_ms"))
        lines.append(f"| {row['name']} | {row['ms']:.3f} | {row['rate']:.0f} {row['unit']} | {share} | {beside} |")
    return "\n".join(lines)


def bits(result: Any) -> tuple[bytes, ...]:
    """The bytes of one array, of several, or of a dict of them."""
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, tuple) else (result,)
    return tuple(part.get().tobytes() for part in parts)


def repeat(cupy: Any, times: int) -> list[str]:
    """Names of the ports that gave other bits in one of that many calls."""
    return [call.name for call in calls(cupy, None, small=True) if len({bits(call.port()) for _ in range(times)}) > 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small shapes, each repeated, no times")
    parser.add_argument("--repeats", type=int, default=250)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        cupy = device()
    except RuntimeError as error:
        sys.exit(str(error))
    if given.small:
        changing = repeat(cupy, given.repeats)
        print(f"{given.repeats} repeats: {'other bits from ' + ', '.join(changing) if changing else 'the same bits'}")
        return int(bool(changing))
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        torch = None
    found = measure(cupy, torch)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    print(table(found))
    return int(any(row["error"] for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
