"""Export: everything that is needed to answer and no answer, whole or not at all; the readers read and write what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oracles import reference
from oracles.golden import export as exporting
from oracles.golden import questions as asking
from oracles.golden.export import INDEX, INPUTS, READERS, export
from oracles.golden.grade import grade
from oracles.golden.questions import Question, questions
from oracles.golden.store import DATA
from oracles.properties import safetensors_file
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.command_subject import to_file
from oracles.properties.declaration import UsageError
from oracles.properties.safetensors_file import Array

from .submissions import right, run_on_all

COMPILERS = {"rust": "rustc", "javascript": "node"}                             # beside Python and C, which are always there
HERE = ["python", "c", *(language for language, tool in COMPILERS.items() if shutil.which(tool))]
for language in COMPILERS.keys() - set(HERE):
    warnings.warn(f"{COMPILERS[language]} is not installed: the {language} reader is unrun", stacklevel=1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "cases"
    export(folder)
    return folder


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return list(questions())


def of_its_own(values: Array, question: Question) -> bytes | None:
    """Eight numbers in a row, all different, which the question's own inputs do not hold; None where there are none such."""
    inputs = b"".join(array.tobytes() for name, array in question.case.arrays.items() if name not in question.withheld)
    flat = values.reshape(-1)
    for start in range(flat.size - 8, -1, -1):
        part = flat[start : start + 8].astype(np.float64)
        found = flat[start : start + 8].tobytes()
        if np.isfinite(part).all() and part.all() and len(set(part.tolist())) == 8 and found not in inputs:
            return found
    return None


def leaks(folder: Path, asked: list[Question]) -> Iterator[str]:
    """Questions whose results stand in some file: as limbs, or rounded as they are to be answered. First how many were looked for."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sought = 0
    for question in asked:
        for name, limbs in question.wanted.items():
            for values in (limbs.hi, limbs.lo, right(question)[name]):
                found = of_its_own(values, question)
                sought += found is not None
                if found is not None and any(found in data for data in files.values()):
                    yield f"{question.name} {name}"
    assert sought > 500


def test_no_answer_is_in_the_export(exported: Path, asked: list[Question]) -> None:
    assert list(leaks(exported, asked)) == []


def test_an_answer_in_the_export_is_seen(tmp_path: Path, asked: list[Question], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the results of the forward pass handed to the backward pass, attention would be answered."""
    monkeypatch.setattr(asking, "_tells_another", lambda *given: False)
    export(tmp_path / "cases")
    found = set(leaks(tmp_path / "cases", asked))
    assert {"attention/softcap out", "attention/softcap lse", "attention_packed/window out"} <= found
    assert {name.partition("/")[0] for name in found} == {"attention", "attention_packed"}


def test_inputs_are_the_arguments_and_nothing_else(exported: Path, asked: list[Question]) -> None:
    functions = [question for question in asked if not question.is_object]
    for question in functions:
        tensors, metadata = safetensors_file.read(exported / INPUTS / question.file)
        wanted, strings = to_file(question.given)
        assert metadata == {**strings, "operation": question.case.operation}
        assert {name: (array.dtype, array.tobytes()) for name, array in tensors.items()} == {
            name: (array.dtype, array.tobytes()) for name, array in wanted.items()}  # fmt: skip
        arrays = {name: array for name, array in question.case.arrays.items() if name not in question.withheld}
        assert {name: tensors[name].shape for name in arrays} == {name: array.shape for name, array in arrays.items()}
    assert len(functions) > 300


def test_who_is_not_given_the_forward_pass_is_judged_as_one_who_recomputes_it(asked: list[Question]) -> None:
    withheld = [question.case.operation for question in asked if question.withheld]
    assert set(withheld) == set(asking.FORWARD)
    assert f"all {len(withheld)} cases of `attention_backward`" in (Path(__file__).parent.parent.parent / "docs" / "grading.md").read_text()
    assert all(question.resolved(Arithmetic()).recomputes == (question.case.operation in withheld) for question in asked)


def test_calls_come_without_what_they_give(exported: Path, asked: list[Question]) -> None:
    objects = [question for question in asked if question.is_object]
    for question in objects:
        content = json.loads((exported / INPUTS / question.file).read_text())
        assert set(content) == {"operation", "case", "arguments", "calls"}
        assert [set(call) for call in content["calls"]] == [{"call", "arguments"}] * len(question.calls)
    assert len(objects) > 20
    told = f"all {len({question.case.operation for question in asked})} operations, {len(asked)} cases"
    assert told in (Path(__file__).parent.parent.parent / "docs" / "grading.md").read_text()


def test_the_index_names_every_file_and_result(exported: Path, asked: list[Question]) -> None:
    cases = json.loads((exported / INDEX).read_text())["cases"]
    assert {case["input"] for case in cases} == {path.relative_to(exported).as_posix() for path in (exported / INPUTS).rglob("*.*")}
    for case, question in zip(cases, asked, strict=True):
        results = right(question)
        assert case["results"] == {name: {"dtype": exporting.TAGS[array.dtype.name], "shape": list(array.shape)}
                                   for name, array in results.items()}  # fmt: skip


def test_every_operation_has_a_page_without_examples(exported: Path) -> None:
    pages = {path.stem: path.read_text() for path in (exported / "operations").iterdir()}
    assert set(pages) == {path.name for path in DATA.iterdir() if path.is_dir()}
    assert all("Source: " in text and ">>>" not in text for text in pages.values())
    assert "are not in the input files" in pages["attention_backward"]
    assert "are not in the input files" not in pages["attention"]


ATTENTION = {"attention", "visible_keys", "softmax"}                            # whose scores, visible keys and softmax it speaks of


@pytest.mark.parametrize(("operation", "beside"), [
    ("softmax", set()), ("attention_backward", ATTENTION), ("mla_attention", ATTENTION), ("dequantize", {"quantize"}),
    ("mtp_loop", {"speculative_loop", "speculative_verify"}), ("ring_attention_backward", {"ring_attention", *ATTENTION}),
])  # fmt: skip
def test_pages_that_a_page_refers_to_are_there(operation: str, beside: set[str], tmp_path: Path) -> None:
    """`Other arguments as in attention` is of no use without that page; what has no page of its own stands where it is spoken of."""
    export(tmp_path / "cases", [operation])
    pages = {path.stem: path.read_text() for path in (tmp_path / "cases" / "operations").iterdir()}
    assert set(pages) == {operation, *beside}
    told = [line.partition("(")[0] for text in pages.values() for line in text.splitlines()]
    for word in (word for text in pages.values() for word in re.findall(r"`(\w+)`", text)):
        assert not callable(getattr(reference, word, None)) or word in told


def test_one_operation_alone(tmp_path: Path) -> None:
    export(tmp_path / "cases", ["softmax"])
    assert [path.name for path in (tmp_path / "cases" / INPUTS).iterdir()] == ["softmax"]
    assert "attention" not in (tmp_path / "cases" / "README.md").read_text()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "mine").write_text("a week of work")
    with pytest.raises(UsageError, match="is there already"):
        export(tmp_path / "answers")
    assert [path.name for path in tmp_path.rglob("*")] == ["answers", "mine"]


def test_an_unknown_operation_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got 'softmx'; want some of softmax"):
        export(tmp_path / "cases", ["softmx"])
    assert list(tmp_path.iterdir()) == []


def test_what_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> bytes:
        raise OSError("no space left on device")

    monkeypatch.setattr(exporting, "_index", full)
    with pytest.raises(OSError, match="no space"):
        export(tmp_path / "cases", ["softmax"])
    assert list(tmp_path.iterdir()) == []


def softmax_program(language: str, readers: Path, folder: Path) -> list[str]:
    """The example program of a language, compiled in `folder` where it must be."""
    program = str(folder / "program")
    if language == "python":
        return [sys.executable, str(readers / "softmax.py")]
    if language == "javascript":
        return ["node", str(readers / "softmax.mjs")]
    if language == "c":
        strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
        subprocess.run(["cc", "-O2", *strict, "-o", program, str(readers / "softmax.c"), "-lm"], check=True)
    else:
        subprocess.run(["rustc", "--edition", "2021", "-O", "-D", "warnings", "-o", program, str(readers / "softmax.rs")], check=True)
    return [program]


@pytest.mark.parametrize("language", HERE)
def test_the_example_of_each_language_gets_full_marks(language: str, exported: Path, tmp_path: Path) -> None:
    """Nothing of ours is near: the example lies in the export and reads and writes there."""
    run_on_all(softmax_program(language, exported / "readers", tmp_path), exported, "softmax", tmp_path / "student")
    (one,) = grade([tmp_path / "student"], ["softmax"])
    assert (one.full, one.score, one.flags) == (True, 16, [])


def test_a_c_program_with_a_fault_loses_what_the_fault_touches(exported: Path, tmp_path: Path) -> None:
    """Softmax always along the last axis: wrong where another one is asked for."""
    shutil.copytree(exported / "readers", tmp_path / "readers")
    source, line = (tmp_path / "readers" / "softmax.c").read_text(), "axis += axis < 0 ? x->rank : 0;"
    assert source.count(line) == 1
    (tmp_path / "readers" / "softmax.c").write_text(source.replace(line, "axis = x->rank - 1;"))
    run_on_all(softmax_program("c", tmp_path / "readers", tmp_path), exported, "softmax", tmp_path / "student")
    (one,) = grade([tmp_path / "student"], ["softmax"])
    assert {c.name for c in one.criteria if c.points < c.max_points} == {"softmax/first-axis", "softmax/middle-axis"}


DUMP = """#include "tensor_files.h"
int main(int count, char **word) {
    TensorFile f;
    (void)count; tensors_read(word[1], &f);
    for (int i = 0; i < f.strings; i++) printf("%s=%s\\n", f.name[i], f.value[i]);
    for (int i = 0; i < f.tensors; i++) {
        printf("%s %s %d", f.tensor[i].name, f.tensor[i].dtype, f.tensor[i].rank);
        for (long j = 0; j < f.tensor[i].count; j++) printf(" %a", tensor_get(&f.tensor[i], j));
        printf("\\n");
    }
    return 0;
}
"""


def test_the_c_reader_reads_what_the_python_reader_reads(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "dump.c").write_text(DUMP)
    subprocess.run(["cc", "-std=c99", "-I", str(READERS), "-o", str(tmp_path / "dump"), str(tmp_path / "dump.c"), "-lm",
                    "-Wno-unused-function"], check=True)  # fmt: skip
    for file in ("attention/sinks-softcap-window", "attention/nothing-visible", "rope/yarn", "write_kv/skipped", "attention/bias-and-mask"):
        path = exported / INPUTS / f"{file}.safetensors"
        tensors, metadata = safetensors_file.read(path)
        lines = subprocess.run([str(tmp_path / "dump"), str(path)], check=True, capture_output=True, text=True).stdout.splitlines()
        assert dict(line.split("=") for line in lines[: len(metadata)]) == metadata
        told = {line.split()[0]: [float.fromhex(x) for x in line.split()[3:]] for line in lines[len(metadata) :]}
        assert set(told) == set(tensors)
        for name, array in tensors.items():
            np.testing.assert_array_equal(np.array(told[name]), array.astype(np.float64).reshape(-1))


def test_the_python_reader_rounds_bfloat16_to_nearest_even(tmp_path: Path) -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, 3.4e38, -np.inf, np.nan, 1e-40, -0.0], np.float32)         # two ties, an overflow
    code = ("import sys, numpy as np, tensor_files as t\nx = np.frombuffer(bytes.fromhex(sys.argv[1]), np.float32)\n"
            "t.write(sys.argv[2], {'x': x}, {'x': 'BF16'})\nprint(t.read(sys.argv[2])[0]['x'].tobytes().hex())")  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", code, x.tobytes().hex(), str(tmp_path / "x")], cwd=READERS, check=True,
                           capture_output=True, text=True)  # fmt: skip
    wanted = safetensors_file.DTYPES["BF16"].type
    rounded = x.astype(wanted)
    np.testing.assert_array_equal(safetensors_file.read(tmp_path / "x")[0]["x"].astype(np.float32), rounded.astype(np.float32))
    np.testing.assert_array_equal(np.frombuffer(bytes.fromhex(ended.stdout.strip()), np.float32), rounded.astype(np.float32))
