"""Lists of arrays: one argument to the subject, one array each to case, wire, file and repro; what is no list is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import check, subject
from oracles.properties.array_lists import gathered, spread
from oracles.properties.calling import call
from oracles.properties.case import Case
from oracles.properties.declaration import UsageError, declaration_of
from oracles.properties.operations import operation_named
from oracles.properties.outcome import MALFORMED, RETURNED
from oracles.properties.subjects import open_subject
from oracles.properties.trial import Trial
from oracles.reference import clip_grad_norm

GRADS = [np.array([3.0], np.float32), np.array([[0.0, 4.0]], np.float32)]
CASE = Case("clip_grad_norm", spread("grads", GRADS), {"max_norm": 1.0})
KERNEL = '''
import numpy as np
def clip(grads, *, max_norm):
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads))
    scale = FACTOR * min(1.0, max_norm / norm) if norm > 0 else 1.0
    return [(g * g.dtype.type(scale) if scale != 1.0 else g.copy()) for g in grads], np.asarray(norm, grads[0].dtype)
'''


def called(function: Any) -> Any:
    return call(function, declaration_of(function, "clip_grad_norm"), CASE, {})


def test_more_than_ten_members_keep_their_order() -> None:
    members = list(range(12))
    assert gathered(spread("grads", members), ("grads",)) == {"grads": members}


def test_a_case_hands_its_list_over_as_one_argument() -> None:
    given = CASE.arguments()
    assert list(given) == ["max_norm", "grads"] or list(given) == ["grads", "max_norm"]
    assert [g.shape for g in given["grads"]] == [(1,), (1, 2)]


def test_a_subject_gets_and_gives_a_list() -> None:
    def clip(grads: Any, *, max_norm: float) -> Any:
        assert isinstance(grads, list)
        wide, norm = clip_grad_norm(grads, max_norm=max_norm)
        return [g.astype(np.float32) for g in wide], norm.astype(np.float32)

    outcome = called(clip)
    assert outcome.kind == RETURNED, outcome.message
    assert {name: array.shape for name, array in outcome.outputs.items()} == {"grads.0": (1,), "grads.1": (1, 2), "norm": ()}


def test_a_list_alone_is_the_first_result() -> None:
    assert list(called(lambda grads, *, max_norm: [g / 5 for g in grads]).outputs) == ["grads.0", "grads.1"]


def test_a_change_of_a_member_is_seen() -> None:
    def clip(grads: Any, *, max_norm: float) -> Any:
        grads[1][...] = 0
        return [g.copy() for g in grads]

    assert called(clip).changed == ("grads.1",)


def test_an_array_in_place_of_a_list_is_malformed() -> None:
    outcome = called(lambda grads, *, max_norm: (grads[0].copy(), np.zeros(())))
    assert (outcome.kind, outcome.message) == (MALFORMED, "grads: returned ndarray; want a list of arrays")


@pytest.mark.parametrize("how", ["buffers", "in_place"])
def test_a_list_is_no_buffer_and_is_not_written_in_place(how: str) -> None:
    with pytest.raises(UsageError, match=f"{how}: got 'grads'"):
        subject("clip_grad_norm", **{how: ["grads"]})(lambda grads, *, max_norm: None)


def test_a_file_in_a_worker_is_held_to_the_laws(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.replace("FACTOR", "1.0"))
    report = check("clip_grad_norm", f"{tmp_path}/kernel.py:clip", budget="quick")
    assert report.held, [str(verdict) for verdict in report.verdicts]


def test_more_than_ten_members_come_back_from_a_worker_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.replace("FACTOR", "1.0"))
    case = Case("clip_grad_norm", spread("grads", [np.full(1, i, np.float32) for i in range(12)]), {"max_norm": 100.0})
    worker = open_subject(f"{tmp_path}/kernel.py:clip", "clip_grad_norm")
    try:
        answer = Trial(operation_named("clip_grad_norm"), worker, case).answer
    finally:
        worker.close()
    assert list(answer) == [*(f"grads.{i}" for i in range(12)), "norm"]


def test_a_repro_of_a_list_runs_alone_and_shows_the_fault(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.replace("FACTOR", "1.01"))
    report = check("clip_grad_norm", f"{tmp_path}/kernel.py:clip", budget="quick", laws=("grads_agree_with_the_oracle",),
                   failures=tmp_path / "failures")  # fmt: skip
    (verdict,) = report.verdicts
    assert verdict.counterexample is not None
    repro = [sys.executable, f"{verdict.counterexample}/repro.py"]
    shown = subprocess.run(repro, capture_output=True, text=True, check=False)
    assert (shown.returncode, "grads." in shown.stdout + shown.stderr) == (1, True), shown.stdout + shown.stderr
    (tmp_path / "kernel.py").write_text(KERNEL.replace("FACTOR", "1.0"))
    assert subprocess.run(repro, capture_output=True, text=True, check=False).returncode == 0


def test_a_program_gets_the_members_by_name(tmp_path: Path) -> None:
    program = tmp_path / "clip.py"
    program.write_text(f"""#!{sys.executable}
import sys, numpy as np
from pathlib import Path
from oracles.properties import safetensors_file
tensors, _ = safetensors_file.read(Path(sys.argv[1]))
names = [n for n in tensors if n.startswith("grads.")]
norm = np.sqrt(sum(float((tensors[n].astype(np.float64) ** 2).sum()) for n in names))
scale = min(1.0, float(tensors["max_norm"]) / norm) if norm > 0 else 1.0
out = {{n: np.ascontiguousarray(tensors[n] * tensors[n].dtype.type(scale)) for n in names}}
safetensors_file.write(Path(sys.argv[2]), {{**out, "norm": np.asarray(norm, tensors[names[0]].dtype)}}, {{}})
""")
    program.chmod(0o755)
    from oracles.properties.command_subject import command_subject

    function, declaration = command_subject(str(program), "clip_grad_norm", {"takes": ["max_norm"]})
    outcome = call(function, declaration, CASE, {})
    assert outcome.kind == RETURNED, outcome.message
    assert np.abs(outcome.outputs["grads.1"] - np.float32([[0.0, 0.8]])).max() <= 2.0**-23
