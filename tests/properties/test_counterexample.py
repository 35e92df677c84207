"""Faults planted in a short flash attention: found, made small, named, and shown again by a file that needs NumPy and the kernel alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import check, checker
from oracles.properties.case import Case
from oracles.properties.operations import operation_named
from oracles.properties.report import Report, Verdict
from oracles.properties.subjects import open_subject
from oracles.properties.trial import Trial

RIGHT = Path(__file__).with_name("short_attention.py")
SOURCE = RIGHT.read_text()
TILE = 64
AGREEMENT = ("out_agrees_with_the_oracle", "lse_agrees_with_the_oracle")

# fault: (text, what replaces it, keys that the shrunk case may have)
FAULTS = {
    "the accumulator is not rescaled in one tile": ("acc * a + p @", "acc * (1 if j == tile else a) + p @", TILE + 4),
    "> for >= in the causal test": ("Lk - Lq >= np.arange", "Lk - Lq > np.arange", 4),
    "P in float16": ("p, a = np.exp(s - shift), np", "p, a = np.exp(s - shift).astype(np.float16).astype(q.dtype), np", 4),
    "the scale 0.1 % off": ("(D**-0.5 if scale is None else scale)", "(1.001 * (D**-0.5 if scale is None else scale))", 4),
    "heads tiled instead of repeated": (
        "np.repeat(k, Hq // Hkv, axis=1), np.repeat(v, Hq // Hkv, axis=1)",
        "np.tile(k, (1, Hq // Hkv, 1, 1)), np.tile(v, (1, Hq // Hkv, 1, 1))", 4),
}  # fmt: skip
EVERY = pytest.mark.parametrize("fault", FAULTS)

# Run as `python -S -c`: numpy and ml_dtypes may be imported from where they are, nothing else that is installed.
ALONE = """
import runpy, sys
class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("oracles", "hypothesis", "safetensors", "scipy", "pytest", "rich", "typer"):
            raise ImportError(f"the repro imports {name}")
sys.meta_path.insert(0, Nobody())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Found:
    report: Report
    kernel: Path

    @property
    def first(self) -> Verdict:
        return next(v for v in self.report.verdicts if v.status == "failed")


def planted(fault: str, folder: Path) -> Path:
    text, other, _ = FAULTS[fault]
    assert SOURCE.count(text) == 1, f"{fault}: the text to replace is not there"
    kernel = folder / f"{re.sub('[^a-z]+', '_', fault.lower())}.py"
    kernel.write_text(SOURCE.replace(text, other))
    return kernel


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    known: dict[str, Found] = {}
    folder = tmp_path_factory.mktemp("kernels")

    def find(fault: str) -> Found:
        if fault not in known:
            kernel = planted(fault, folder)
            report = check("attention", f"{kernel}:attention", budget="quick", in_process=True, laws=AGREEMENT,
                           failures=folder / "failures", declared={"dtypes": ["float32"]})  # fmt: skip
            known[fault] = Found(report, kernel)
        return known[fault]

    return find


def alone(*arguments: str, folder: str = "/") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, check=False, cwd=folder)


def test_the_kernel_without_a_fault_passes_the_check() -> None:
    report = check("attention", f"{RIGHT}:attention")
    assert report.held, [v for v in report.verdicts if v.status in ("failed", "error")]


@EVERY
def test_the_fault_is_found_and_the_law_is_named(fault: str, found: Callable[[str], Found]) -> None:
    assert not found(fault).report.held
    assert found(fault).first.law == "out_agrees_with_the_oracle"
    assert "of what is allowed" in found(fault).first.reason


@EVERY
def test_the_case_is_shrunk(fault: str, found: Callable[[str], Found]) -> None:
    case, _ = Case.load(Path(str(found(fault).first.counterexample)) / "case.safetensors")
    assert case.arrays["k"].shape[2] <= FAULTS[fault][2]
    assert case.arrays["q"].shape[0] == 1
    assert case.arrays["q"].shape[2] <= 2


@EVERY
def test_the_saved_case_still_fails_by_itself(fault: str, found: Callable[[str], Found]) -> None:
    first, operation = found(fault).first, operation_named("attention")
    case, _ = Case.load(Path(str(first.counterexample)) / "case.safetensors")
    trial = Trial(operation, open_subject(f"{found(fault).kernel}:attention", "attention", in_process=True), case)
    assert next(law for law in operation.laws if law.name == first.law).judge(trial).reason == first.reason


@EVERY
def test_the_repro_fails_without_us_and_passes_with_the_right_kernel(fault: str, found: Callable[[str], Found]) -> None:
    repro = f"{found(fault).first.counterexample}/repro.py"
    wrong = alone(repro)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert wrong.stdout.startswith("out_agrees_with_the_oracle: FAILS: out[")
    right = alone(repro, f"{RIGHT}:attention")
    assert (right.returncode, right.stdout) == (0, "out_agrees_with_the_oracle: holds on this case\n"), right.stderr


def test_a_kernel_named_on_the_command_line_is_looked_for_where_one_stands(found: Callable[[str], Found]) -> None:
    repro = f"{found('> for >= in the causal test').first.counterexample}/repro.py"
    assert alone(repro, "short_attention.py:attention", folder=str(RIGHT.parent)).returncode == 0


def test_the_repro_imports_numpy_and_the_standard_library_alone(found: Callable[[str], Found]) -> None:
    text = (Path(str(found("P in float16").first.counterexample)) / "repro.py").read_text()
    imported = set(re.findall(r"^\s*(?:import|from) ([a-z_]+)", text, re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) == {"numpy", "ml_dtypes", "torch", "jax", "cupy"}
    assert re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE).count("numpy") == 1
    assert not re.search(r"^(?:import|from) (ml_dtypes|torch|jax|cupy)", text, re.MULTILINE)


def test_the_report_beside_it_says_what_failed(found: Callable[[str], Found]) -> None:
    first = found("the scale 0.1 % off").first
    data = json.loads((Path(str(first.counterexample)) / "report.json").read_text())
    assert (data["operation"], data["law"], data["reason"]) == ("attention", first.law, first.reason)
    assert data["declared"] == {"dtypes": ["float32"]}
    assert sorted(data["shapes"]) == ["k", "q", "v"]


def test_two_subjects_with_the_same_failure_have_folders_of_their_own(found: Callable[[str], Found], tmp_path: Path) -> None:
    places = set()
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(SOURCE.replace("Lk - Lq >= np", "Lk - Lq > np"))
        report = check("attention", f"{tmp_path / name}.py:attention", budget="quick", in_process=True, laws=AGREEMENT[:1],
                       failures=tmp_path / "failures", declared={"dtypes": ["float32"]})  # fmt: skip
        places.add(report.verdicts[0].counterexample)
    assert len(places) == 2
    assert not list((tmp_path / "failures").glob(".writing*"))


# A fault only its own law can see, the law, and what is declared.
OWN_RULES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the second run differs": (
        "def attention(*arguments, calls=[], **options):\n    out, lse = right(*arguments, **options)\n    calls.append(1)\n"
        "    return np.nextafter(out, np.where(out == 0, out, np.inf).astype(out.dtype)) if len(calls) % 2 else out, lse\n",
        "repeats_give_the_same_bits", {"promises": ["deterministic"]}),
    "a batch is computed in another way": (
        "def attention(q, k, v, **options):\n    out, lse = right(q, k, v, **options)\n"
        "    return np.nextafter(out, np.where(out == 0, out, np.inf).astype(out.dtype)) if len(q) > 1 else out, lse\n",
        "a_batch_is_its_items", {"promises": ["batch_invariant"]}),
    "bad input is taken": (
        "def attention(q, k, v, *, causal=None):\n    D, H, L = min(q.shape[-1], k.shape[-1]), k.shape[1], min(k.shape[2], v.shape[2])\n"
        "    if q.shape[1] % H: raise ValueError(H)\n    B = min(len(q), len(k))\n"
        "    return right(q[:B, ..., :D], k[:B, ..., :L, :D], v[:B, ..., :L, :], causal=causal)[0]\n",
        "bad_input_is_refused", {"promises": ["validates_input"]}),
    "the last column of a buffer is not written": (
        "def attention(q, k, v, out, *, causal=None):\n    out[..., :-1] = right(q, k, v, causal=causal)[0][..., :-1]\n",
        "buffers_are_fully_written", {"buffers": ["out"]}),
    "an input is scaled in place": (
        "def attention(q, k, v, *, causal=None):\n    out = right(q, k, v, causal=causal)\n    q *= q.dtype.type(0.5)\n    return out\n",
        "inputs_stay_untouched", {}),
    "strides are ignored": (
        "def attention(q, k, v, *, causal=None):\n    if not q.flags.c_contiguous:\n        q = np.ascontiguousarray(q)[..., ::-1]\n"
        "    return right(q, k, v, causal=causal)\n",
        "strides_are_respected", {}),
    "later keys leak": (
        "def attention(q, k, v, *, causal=None):\n    out, lse = right(q, k, v, causal=causal)\n"
        "    return out + (v[:, :, -1:, :1].sum() if v.size else 0), lse\n",
        "what_comes_later_changes_no_earlier_bit", {}),
}  # fmt: skip


@pytest.mark.parametrize("fault", OWN_RULES)
def test_the_repro_of_a_law_with_a_rule_of_its_own_fails_and_passes(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 1.0)
    text, law, declared = OWN_RULES[fault]
    right = SOURCE.replace("def attention", "def right")
    (tmp_path / "faulty.py").write_text(f"{right}\n\n{text}")
    (tmp_path / "sound.py").write_text(right + SOUND.get(law, "\n\nattention = right\n"))
    report = check("attention", f"{tmp_path / 'faulty.py'}:attention", budget="quick", in_process=True, laws=(law,), failures=tmp_path,
                   declared={"dtypes": ["float32"], "causal": [None, "bottom_right"], **declared})  # fmt: skip
    (verdict,) = report.verdicts
    assert verdict.status == "failed"
    wrong = alone(f"{verdict.counterexample}/repro.py")
    assert (wrong.returncode, wrong.stdout.startswith(f"{law}: FAILS: ")) == (1, True), wrong.stdout + wrong.stderr
    mended = alone(f"{verdict.counterexample}/repro.py", f"{tmp_path / 'sound.py'}:attention")
    assert (mended.returncode, mended.stdout) == (0, f"{law}: holds on this case\n"), mended.stderr


# The mended kernel, where the short attention itself does not have the arguments or the checks.
SOUND = {
    "buffers_are_fully_written": "\n\ndef attention(q, k, v, out, *, causal=None):\n    out[...] = right(q, k, v, causal=causal)[0]\n",
    "bad_input_is_refused": (
        "\n\ndef attention(q, k, v, *, causal=None):\n    if q.shape[1] % k.shape[1] or len(q) != len(k) or k.shape[:3] != v.shape[:3]:\n"
        "        raise ValueError(k.shape)\n    return right(q, k, v, causal=causal)[0]\n"),
}  # fmt: skip


def test_what_raises_or_is_malformed_is_shown_by_its_repro(tmp_path: Path) -> None:
    told = {"raises": "the call raises ZeroDivisionError: a tile of no rows", "returns_a_wrong_dtype": "has dtype float16",
            "returns_nothing": "returned nothing"}  # fmt: skip
    for function, words in told.items():
        report = check("attention", f"{RIGHT.with_name('broken_subjects.py')}:{function}", budget="quick", in_process=True,
                       laws=("answers",), failures=tmp_path, declared={"dtypes": ["float32"]})  # fmt: skip
        wrong = alone(f"{report.verdicts[0].counterexample}/repro.py")
        assert wrong.returncode == 1
        assert words in wrong.stdout


def test_a_function_without_a_name_of_its_own_has_to_be_told(tmp_path: Path) -> None:
    def wrong(q: Any, k: Any, v: Any) -> Any:
        return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)

    report = check("attention", wrong, budget="quick", laws=AGREEMENT[:1], failures=tmp_path)
    repro = f"{report.verdicts[0].counterexample}/repro.py"
    told = alone(repro)
    assert "which kernel? run: repro.py FILE.py:FUNCTION" in told.stderr
    assert told.returncode == 1
    assert alone(repro, f"{RIGHT}:attention").returncode == 0
