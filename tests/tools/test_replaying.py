"""A saved counterexample is put to its subject again, as it was declared, from any folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import UsageError, check
from oracles.properties.case import Case
from oracles.properties.law import within
from oracles.properties.operations import operation_named
from oracles.properties.subjects import open_subject
from oracles.properties.trial import Trial
from oracles.tools.replaying import _wrong_elements, replay

SHORT = Path(__file__).parents[1] / "properties" / "short_attention.py"
LAW = "out_agrees_with_the_oracle"


def failure(folder: Path, text: str, other: str, **declared: Any) -> Path:
    source = SHORT.read_text()
    assert source.count(text) == 1
    (folder / "faulty.py").write_text(source.replace(text, other))
    report = check("attention", f"{folder / 'faulty.py'}:attention", budget="quick", in_process=True, laws=(LAW,),
                   failures=folder / "failures", declared={"dtypes": ["float32"], **declared})  # fmt: skip
    return Path(str(report.verdicts[0].counterexample))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return failure(tmp_path_factory.mktemp("masked"), "Lk - Lq >= np.arange", "Lk - Lq > np.arange")


@pytest.fixture(scope="module")
def not_rescaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return failure(tmp_path_factory.mktemp("rescaled"), "acc * a + p @", "acc * (1 if j == tile else a) + p @")


@pytest.mark.parametrize("name", ["", "case.safetensors", "report.json", "repro.py"])
def test_a_folder_or_a_file_in_it_is_replayed(name: str, masked: Path, oracles: Any) -> None:
    ended = oracles("replay", str(masked / name))
    assert ended.code == 1
    for words in ("still fails", LAW, "out[0,0,0,0]", "1 element wrong; the first is out[0,0,0,0]: batch 0, head 0, row 0"):
        assert words in ended.out


def test_a_result_that_is_no_rows_of_heads_is_not_told_as_such(tmp_path: Path) -> None:
    """A mask of a layer with four axes: "batch 0, head 0, row 1" would be a lie."""
    def nothing_goes(weights: Any, *, sparsity: float, scope: str) -> Any:
        return [np.ones(w.shape, bool) for w in weights] if isinstance(weights, list) else np.ones(weights.shape, bool)

    case = Case("prune_magnitude", {"weights": np.ones((1, 2, 1, 2), np.float32)}, {"sparsity": 0.5, "scope": "layer"})
    trial = Trial(operation_named("prune_magnitude"), open_subject(nothing_goes, "prune_magnitude"), case)
    _, wrong, first = _wrong_elements(trial, within(trial.answer, trial.wanted, trial.allowed))
    assert (wrong, first) == (2, "the first is masks[0,0,0,0]")


def test_another_subject_can_be_named(masked: Path, oracles: Any) -> None:
    ended = oracles("replay", str(masked), "--subject", f"{SHORT}:attention")
    assert ended.code == 0
    assert "holds now" in ended.out


def test_json_says_what_was_allowed_and_what_came(masked: Path, oracles: Any) -> None:
    data = oracles("replay", str(masked), "--json", "--in-process").data
    assert (data["law"], data["failed"], data["elements_wrong"]) == (LAW, True, 1)
    (worst,) = data["worst"]
    assert not worst["low"] <= worst["got"] <= worst["high"]


def test_the_hint_names_the_keys_of_the_tile_that_was_not_rescaled(not_rescaled: Path, oracles: Any) -> None:
    ended = oracles("replay", str(not_rescaled), "--explain")
    assert ended.code == 1
    assert "largest errors of weight first: keys 0 to 63: " in ended.out
    assert "of the right weight" in ended.out


def test_without_explain_no_hint_is_printed(not_rescaled: Path, oracles: Any) -> None:
    assert "of the right weight" not in oracles("replay", str(not_rescaled)).out


def test_what_was_declared_for_the_subject_is_declared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text(
        "import numpy as np\n\ndef kernel(query, key, value, is_causal=False):\n"
        "    return np.zeros((*query.shape[:3], value.shape[3]), query.dtype)\n")
    monkeypatch.chdir(tmp_path)
    report = check("attention", "faulty.py:kernel", budget="quick", laws=(LAW,), failures="failures",
                   declared={"dtypes": ["bfloat16"], "causal": ["top_left"], "layout": "blhd", "arithmetic": "flash_gpu"})  # fmt: skip
    (tmp_path / "elsewhere").mkdir()
    folder = (tmp_path / str(report.verdicts[0].counterexample)).resolve()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = replay(folder)
    assert (found.failed, found.judgement.reason) == (True, report.verdicts[0].reason)


def test_a_function_that_was_handed_in_has_to_be_named(tmp_path: Path) -> None:
    report = check("softmax", lambda x, *, axis=-1: 2 * x, budget="quick", laws=("p_agrees_with_the_oracle",), failures=tmp_path)
    with pytest.raises(UsageError, match=r"the failure was of the Python object <lambda>; name it with --subject FILE\.py:FUNCTION"):
        replay(Path(str(report.verdicts[0].counterexample)))


def spoiled(folder: Path, tmp_path: Path, name: str, content: bytes) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_spoiled_folder_is_bad_usage(masked: Path, tmp_path: Path) -> None:
    report = json.loads((masked / "report.json").read_text())
    for name, content in {
        "case.safetensors": b"nonsense, and long enough",
        "report.json": b"{",
    }.items():
        with pytest.raises(UsageError, match=r"FAILURE: .* cannot be read .*; want a folder that a check has written"):
            replay(spoiled(masked, tmp_path, name, content))
    content = json.dumps({**report, "law": "is_fast"}).encode()
    with pytest.raises(UsageError, match="speaks of the law is_fast, which attention does not have"):
        replay(spoiled(masked, tmp_path, "report.json", content))


@pytest.mark.parametrize("place", ["nowhere", "nowhere/at/all.py", "."])
def test_a_place_without_a_counterexample_is_bad_usage(place: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no counterexample; want a folder with"):
        replay(tmp_path / place)
