"""Submissions: right answers to every question, in the formats the defaults ask for, and programs that answer by themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from oracles.golden.export import ANSWERS, plain
from oracles.golden.grade import Grade
from oracles.golden.questions import Question, questions
from oracles.properties import safetensors_file
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.operation import BOOLEAN, INTEGER
from oracles.properties.safetensors_file import Array
from oracles.reference import FloatFormat


def in_format(values: Array, name: str) -> Array:
    """The values in a format as `format_of` names it, rounded once."""
    if name in (INTEGER, BOOLEAN):
        return values.astype(np.int64 if name == INTEGER else np.bool_)
    return np.asarray(FloatFormat(name).cast(values))


def right(question: Question) -> dict[str, Array]:
    """The exact results, rounded once."""
    arithmetic = question.resolved(Arithmetic())
    return {name: in_format(limbs.hi, question.format_of(name, arithmetic)) for name, limbs in question.wanted.items()}


def answer(folder: Path, operations: Sequence[str] = ()) -> Path:
    """A folder with right answers."""
    for question in questions(operations=operations):
        path = folder / ANSWERS / question.file
        path.parent.mkdir(parents=True, exist_ok=True)
        if question.is_object:
            calls = [{"raises": step.raises} if step.raises else {"answer": plain(step.answer)} for step in question.calls]
            path.write_text(json.dumps({"calls": calls}))
        else:
            safetensors_file.write(path, right(question))
    return folder


def run_on_all(command: Sequence[str], exported: Path, operation: str, answers: Path) -> None:
    """The program once for each input of an operation, as the README says."""
    (answers / ANSWERS / operation).mkdir(parents=True)
    for given in sorted((exported / "inputs" / operation).iterdir()):
        subprocess.run([*command, str(given), str(answers / ANSWERS / operation / given.name)], check=True)


def losses(one: Grade) -> dict[str, str]:
    """The cases with less than full marks, and why."""
    return {criterion.name: criterion.reason for criterion in one.criteria if criterion.points < criterion.max_points}
