"""A fault planted in the text of a kernel, and what one law of its operation says of the port that is built from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oracles.gpu.kernel import KERNELS
from oracles.gpu.launching import Backend
from oracles.properties import check, subject


def status_with_fault(
    folder: Path, file: str, was: str, becomes: str, *, port: Callable[..., Any], operation: str, law: str,
    after: Callable[[str], str] = str, results: Callable[[Any], Any] = lambda results: results, **declared: Any,
) -> str:  # fmt: skip
    """The law's status once the text `was`, which stands in the file once, has become another, in a copy of the kernels in `folder`.

    after       what else is done to the file's text
    results     what is made of the port's results before they are judged
    declared    of the port, beside float32
    """
    for source in KERNELS.iterdir():
        shutil.copy(source, folder)
    text = (KERNELS / file).read_text()
    assert text.count(was) == 1
    (folder / file).write_text(after(text.replace(was, becomes)))

    def broken(*positional: Any, **named: Any) -> Any:
        return results(port(*positional, **named, backend=Backend("emulated", kernels=folder)))

    declares = subject(operation, dtypes=["float32"], **declared)
    (verdict,) = check(operation, declares(broken), budget=0, laws=(law,), in_process=True).verdicts
    return verdict.status
