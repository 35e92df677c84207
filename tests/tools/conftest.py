"""The command line called in this process, and small kernels for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oracles.tools.command_line import main

KERNELS = '''
import numpy as np
from oracles.properties import subject

def softmax(x, *, axis=-1):
    m = x.max(axis=axis, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l).astype(x.dtype)

def twice(x, *, axis=-1):
    return 2 * softmax(x, axis=axis)

def noisy(x, *, axis=-1):
    print("row after row")
    return softmax(x, axis=axis)

@subject("softmax")
def declared(x, *, axis=-1):
    return softmax(x, axis=axis)

def half(x, *, axis=-1):
    return softmax(x.astype(np.float32), axis=axis)
'''


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The printed JSON, which knows no NaN and no infinity."""
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def oracles(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ended]:
    """`oracles ARGUMENTS` in a folder of its own that holds kernels.py."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["oracles", *arguments])
        capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Ended(code, *capfd.readouterr())

    return run
