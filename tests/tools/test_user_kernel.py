"""A user's kernel in another style becomes a subject by its launch function, holds the laws, and is race-checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from oracles.properties import check
from oracles.properties.declaration import UsageError
from oracles.tools.gpu_commands import gpu_app
from oracles.tools.race_check import race_check
from oracles.tools.user_kernel import emulated_function, emulated_subject, split_kernel

MATERIAL = Path(__file__).parent.parent / "gpu" / "material"
KERNEL, LAUNCH = f"{MATERIAL / 'packed_qkv.cu'}:packed_attention", MATERIAL / "packed_qkv_launch.py"


@pytest.fixture(autouse=True)
def _no_subject_left_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oracles.tools.user_kernel.cache_folder", lambda: tmp_path / "emulator")


@pytest.mark.gpu
def test_a_kernel_with_packed_qkv_holds_the_laws_of_attention(tmp_path: Path) -> None:
    report = check("attention", emulated_subject(KERNEL, LAUNCH), budget="quick", failures=tmp_path / "failures")
    assert report.held, [outcome for outcome in report.to_json()["laws"] if outcome.get("status") == "failed"]


def faulty(folder: Path, right: str, wrong: str) -> str:
    text = (MATERIAL / "packed_qkv.cu").read_text()
    assert right in text
    (folder / "packed_qkv.cu").write_text(text.replace(right, wrong))
    return f"{folder / 'packed_qkv.cu'}:packed_attention"


@pytest.mark.gpu
def test_a_fault_in_that_kernel_fails_a_law(tmp_path: Path) -> None:
    subject = emulated_subject(faulty(tmp_path, "causal ? query + 1 : L", "causal ? query : L"), LAUNCH)
    assert not check("attention", subject, budget="quick", failures=tmp_path / "failures", max_seconds=60).held


@pytest.mark.gpu
def test_the_race_check_finds_nothing_in_that_kernel() -> None:
    report = race_check(KERNEL, LAUNCH, cases=3)
    assert report.clean, str(report)
    assert report.cases == 3


@pytest.mark.gpu
def test_the_race_check_names_a_dropped_barrier_with_both_lines(tmp_path: Path) -> None:
    kernel = faulty(tmp_path, "__syncwarp();", ";")
    text = Path(kernel.partition(":")[0]).read_text().splitlines()
    result = CliRunner().invoke(gpu_app, ["race", kernel, "--launch", str(LAUNCH), "--cases", "3", "--json"])
    assert result.exit_code == 1
    races = [finding for finding in json.loads(result.stdout)["findings"] if finding["kind"] == "race"]
    lines = {text[int(place.rpartition(":")[2]) - 1].strip() for finding in races for place in finding["places"]}
    assert any("total +=" in line for line in lines)
    assert any("sum +=" in line for line in lines)


@pytest.mark.gpu
def test_our_own_kernel_is_race_checked_by_the_name_of_its_file() -> None:
    result = CliRunner().invoke(gpu_app, ["race", "merge_attention", "--cases", "2"])
    assert result.exit_code == 0, result.stdout
    assert "no faults found" in result.stdout


@pytest.mark.gpu
def test_a_copy_of_our_kernel_with_its_first_barrier_removed_is_found_by_its_path(tmp_path: Path) -> None:
    from oracles.gpu.kernel import KERNELS

    for path in KERNELS.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    changed = tmp_path / "flash_forward.cu"
    changed.write_text(changed.read_text().replace("__syncthreads();", ";", 1))
    report = race_check(str(changed), None, cases=2)
    races = [finding for finding in report.findings if finding.kind == "race"]
    assert races, str(report)
    assert all(len(finding.places) == 2 for finding in races)


WRONG_PLANS: list[tuple[Any, str]] = [
    (None, "returned a NoneType; want a dict with grid, block, args, results"),
    ({"grid": (1,)}, "launch returned grid; want grid, block, args, results"),
    ({"grid": (1,), "block": (1,), "args": [], "results": {}, "shared": 0}, "and perhaps shared_mem"),
    ({"grid": (1,), "block": (1,), "args": [], "results": {"out": np.zeros(3)}}, "the result 'out' is none of the arrays in args"),
]


@pytest.mark.parametrize(("plan", "says"), WRONG_PLANS, ids=[says for _, says in WRONG_PLANS])
def test_a_wrong_plan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Any, says: str) -> None:
    (tmp_path / "planned.py").write_text("def launch(q, k, v, *, causal):\n    return PLAN\n")
    function = emulated_function(MATERIAL / "packed_qkv.cu", "packed_attention", tmp_path / "planned.py")
    function.__wrapped__.__globals__["PLAN"] = plan  # type: ignore[attr-defined]
    with pytest.raises(UsageError) as caught:
        function(1, 2, 3, causal=None)
    assert says in str(caught.value)


MISSING = [
    (f"{MATERIAL / 'missing.cu'}:f", LAUNCH, "no file"),
    (KERNEL, None, "--launch: not given"),
    (KERNEL, Path("missing.py"), "--launch: no file missing.py"),
    ("packed_qkv.cu", LAUNCH, "want FILE.cu:KERNEL"),
]


@pytest.mark.parametrize(("kernel", "launch", "says"), MISSING, ids=[says for _, _, says in MISSING])
def test_what_is_missing_is_named(kernel: str, launch: Path | None, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        emulated_subject(kernel, launch)
    assert says in str(caught.value)


def test_a_launch_file_without_the_function_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="has no function launch"):
        emulated_function(MATERIAL / "packed_qkv.cu", "packed_attention", tmp_path / "nothing.py")


def test_a_template_instance_may_be_named() -> None:
    assert split_kernel(f"{MATERIAL / 'reductions.cu'}:quantize_rows<128>") == (MATERIAL / "reductions.cu", "quantize_rows<128>")


def test_an_unknown_kernel_lists_ours() -> None:
    with pytest.raises(UsageError, match=r"want FILE.cu:KERNEL with --launch, or one of ours: softmax.cu"):
        race_check("unknown", None)


def test_an_unknown_operation_names_those_that_are_near() -> None:
    with pytest.raises(UsageError, match="OPERATION: got 'attend'; want one of `oracles list`, such as attention"):
        race_check(KERNEL, LAUNCH, operation="attend")
