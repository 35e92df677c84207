"""Export: the inputs of golden cases without an answer, for programs in any language, with what they need to be read and answered."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oracles import reference
from oracles.properties import safetensors_file
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.array_lists import whole_name
from oracles.properties.command_subject import to_file
from oracles.properties.declaration import UsageError
from oracles.properties.operation import INTEGER

from .questions import CHECKED, Question, operations_there, questions
from .store import DATA

INDEX, INPUTS, ANSWERS = "index.json", "inputs", "answers"
TAGS = {dtype.name: tag for tag, dtype in safetensors_file.DTYPES.items()}
READERS = Path(__file__).with_name("readers")
OBJECTS: dict[str, tuple[str, ...]] = {
    "block_allocator": ("BlockAllocator",), "token_mask": ("compile_regex", "token_mask", "advance"),
    "torch_stream": ("TorchStream",), "schedule_timeline": ("Schedule", "schedule"),
    "loss_scaler": ("LossScaler",), "master_weights": ("MasterWeights",), "zero": ("Zero",), "kv_cache": ("KVCache",),
}  # fmt: skip
# What the oracle leaves open, or the calls need besides.
NOTES = {
    "block_allocator": "Which block is given is part of the answer: free blocks in the order in which they fell free, at first 0, 1, 2, ….",
    "token_mask": 'States go by number: 0 is the start, and each `advance` that is allowed makes the next number, whether or not the state '
                  'was there before. Answer `advance` with `{"state": its number, "mask": the mask there}`.',
    "torch_stream": 'Answer `randn` and `rand` with nested lists of their float32 numbers. `digest` draws as `randn` does: answer it with '
                    '`{"sha256": {"bytes": hexadecimal digits of the SHA-256 of the little-endian numbers in C order}, "first": the first '
                    '16 of them, "last": the last 16}`.',
    "schedule_timeline": "For the actions of a `Schedule`, whatever order they are in, and durations of F, B and W in whole units: answer "
                         "`starts` and `ends`, (stages, n) integers, when each action starts and ends: as soon as its stage is free and "
                         "what it needs is there (F the F of the piece before; B its own F and the B of the piece after; W its own B). "
                         "And `peak`, (stages,), the most inputs of chunks that a stage holds at once: from F to W, or B if not split.",
    "loss_scaler": '`value` and `scale`: a number. `unscale`: `{"grads": …, "found_inf": true or false}`; `step` takes these gradients, '
                   'answers whether it is taken; `update` takes what was found. `state`: `{"value": …, "run": …}`. Where there is nothing '
                   'to tell: null. Numbers that are not finite are the texts "inf", "-inf", "nan".',
    "master_weights": '`weights`: a list. `step`: whether it is taken. `state`: `{"master", "m", "v": lists, "step": …}`; `resume` goes on '
                      'from the state that was told as that number, 0 the first. Where there is nothing to tell: null. Numbers that are '
                      'not finite are the texts "inf", "-inf", "nan".',
    "zero": "`params`: the lists by name. `held`: for each rank its bytes by role, 8 for each number. `reload`: save, and load into "
            "another object of that stage and world. Where there is nothing to tell: null; so for `step`, whose norm is rounded.",
    "kv_cache": '`view`: `{"k", "v"}`, nested lists; `length`: a whole number, that of `len(cache)`. For the other calls: null.',
}  # fmt: skip


def export(folder: Path, operations: Sequence[str] = (), *, golden: Path = DATA) -> list[Question]:
    """Write the questions of some operations, of all where none is named, into `folder`, which must not be there yet.

    All or nothing: the files are made in a temporary folder beside it. Returns the questions written.
    Raises UsageError for a folder that is there and for unknown operations, store.GoldenFault for damaged golden files.
    """
    _check_names(operations, golden)
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"DIR: {folder} is there already; want a folder that is not")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".exporting-"))
    try:
        asked = list(questions(golden, operations))
        for question in asked:
            _put(temporary / INPUTS / question.file, _input(question))
            (temporary / ANSWERS / question.case.operation).mkdir(parents=True, exist_ok=True)
        _put(temporary / INDEX, _index(asked))
        names = list(dict.fromkeys(question.case.operation for question in asked))
        there = operations_there(golden)
        for name in _with_referred(names, there):
            _put(temporary / "operations" / f"{name}.md", _page(name, asked, there).encode())
        for source in sorted(READERS.iterdir()):
            if source.is_file() and source.name != "README.md":
                _put(temporary / "readers" / source.name, source.read_bytes())
        _put(temporary / "README.md", _readme(names, asked).encode())
        os.chmod(temporary, 0o755)
        os.rename(temporary, folder)
        return asked
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_names(operations: Sequence[str], golden: Path) -> None:
    there = operations_there(golden)
    for name in operations:
        if name not in there:
            raise UsageError(f"--operation: got {name!r}; want some of {', '.join(there)}")


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _input(question: Question) -> bytes:
    """The bytes of an input file: tensors as programs behind `cmd:` get them, or the calls on an object as JSON."""
    if question.is_object:
        calls = [{"call": step.call, "arguments": plain(step.arguments)} for step in question.calls]
        content = {"operation": question.case.operation, "case": question.case.origin, "arguments": plain(question.making), "calls": calls}
        return (json.dumps(content, indent=1) + "\n").encode()
    tensors, metadata = to_file(question.given)
    return safetensors_file.dumps(tensors, {**metadata, "operation": question.case.operation})


def plain(value: Any) -> Any:
    """Arguments and answers of calls as plain JSON: arrays and pairs as lists, bytes as {"bytes": their hexadecimal digits}."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def _index(asked: Sequence[Question]) -> bytes:
    """The index: one line a case."""
    lines = ",\n".join(json.dumps(_entry(question)) for question in asked)
    return f'{{"version": 1, "cases": [\n{lines}\n]}}\n'.encode()


def _entry(question: Question) -> dict[str, Any]:
    """A case as the index describes it; dtypes as safetensors names them, I64 for any integer dtype."""
    arithmetic = question.resolved(Arithmetic())
    formats = {name: question.format_of(name, arithmetic).replace(INTEGER, "int64") for name in question.wanted}
    results = {name: {"dtype": TAGS[formats[name]], "shape": list(value.hi.shape)} for name, value in question.wanted.items()}
    return {"operation": question.case.operation, "case": question.case.origin, "input": f"{INPUTS}/{question.file}",
            "answer": f"{ANSWERS}/{question.file}", "results": results, "withheld": list(question.withheld)}  # fmt: skip


def _page(name: str, asked: Sequence[Question], there: Collection[str]) -> str:
    """What an operation computes, in the words of its oracle, and of the functions that these words name."""
    lines = [f"# {name}", ""]
    if name in CHECKED:
        lines += [CHECKED[name].summary, ""]
    for function in _functions(name, there):
        oracle = _oracle(function)
        lines += ["```text", f"{function}{_bare_signature(oracle)}", "", _without_examples(oracle), "```", ""]
    if name in NOTES:
        lines += [NOTES[name], ""]
    withheld = next((q.withheld for q in asked if q.case.operation == name and q.withheld), ())
    if withheld:
        lines += [f"`{'` and `'.join(withheld)}` are not in the input files, since they answer other cases: compute them.", ""]
    return "\n".join(lines)


def _with_referred(names: Sequence[str], there: Collection[str]) -> list[str]:
    """Operations, and those that their pages refer to, as in "other arguments as in `attention`", and so on."""
    found = list(names)
    for name in found:                                                          # which grows
        spoken_of = [word for function in _functions(name, there) for word in _spoken_of(function)]
        found += [word for word in dict.fromkeys(spoken_of) if word in there and word not in found]
    return found


def _functions(name: str, there: Collection[str]) -> list[str]:
    """What stands on the page of an operation: its function or class, and what these speak of that has no page of its own."""
    found = list(OBJECTS.get(name, (name,)))
    for function in found:                                                      # which grows
        found += [word for word in _spoken_of(function) if word not in there and word not in found]
    return found


def _spoken_of(function: str) -> list[str]:
    """The functions and classes of the reference that a docstring names, as `name` or as a call."""
    words = re.findall(r"`([A-Za-z]\w*)`|\b([A-Za-z]\w*)\(", _without_examples(_oracle(function)))
    return [word for word in dict.fromkeys(quoted or called for quoted, called in words) if callable(getattr(reference, word, None))]


def _oracle(name: str) -> Any:
    return CHECKED[name].oracle if name in CHECKED else getattr(reference, name)


def _without_examples(function: Any) -> str:
    """The docstring without its examples, which may happen to answer a case."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(paragraph for paragraph in paragraphs if not paragraph.startswith(">>>"))


def _bare_signature(function: Any) -> inspect.Signature:
    parameters = inspect.signature(function).parameters.values()
    return inspect.Signature([p.replace(annotation=p.empty) for p in parameters])


def _readme(names: Sequence[str], asked: Sequence[Question]) -> str:
    rows = []
    for name in names:
        mine = [question for question in asked if question.case.operation == name]
        results = ", ".join(dict.fromkeys(whole_name(result) for question in mine for result in question.wanted)) or "calls"
        rows.append(f"| [{name}](operations/{name}.md) | {len(mine)} | {results} |")
    return (READERS / "README.md").read_text().replace("{operations}", "\n".join(rows))
