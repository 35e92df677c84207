"""What `import oracles.reference` brings in."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import oracles.reference
from oracles.reference.deferred import DEFERRED, HOME

PROGRAM = """
import sys
before = set(sys.modules)
import numpy, ml_dtypes
numpy_brings = set(sys.modules)
import oracles.reference
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - numpy_brings} - set(sys.stdlib_module_names)))
"""


def test_the_oracles_import_numpy_and_ml_dtypes_alone() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert set(output.split()) <= {"numpy", "ml_dtypes", "oracles"}           # NumPy loads parts of itself late


def test_every_name_offered_is_there() -> None:
    assert [name for name in oracles.reference.__all__ if not hasattr(oracles.reference, name)] == []


def test_what_is_deferred_is_loaded_by_its_name_and_not_before() -> None:
    program = f"""
import sys
import oracles.reference as reference
modules = {list(DEFERRED)!r}
assert not [name for name in modules if f"oracles.reference.{{name}}" in sys.modules], "loaded at once"
from oracles.reference import training_bytes
assert training_bytes is sys.modules["oracles.reference.costs_memory"].training_bytes is reference.training_bytes
assert "training_flops" in dir(reference)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_type_checkers_see_the_names_that_are_deferred() -> None:
    """The imports that they alone follow are those of the table, and no module has the name of something offered."""
    tree = ast.parse(Path(oracles.reference.__file__).read_text())
    (followed,) = (node.body for node in tree.body if isinstance(node, ast.If))
    assert {node.module: tuple(alias.name for alias in node.names) for node in followed if isinstance(node, ast.ImportFrom)} == DEFERRED
    assert not set(DEFERRED) & set(oracles.reference.__all__)
    assert set(HOME) <= set(oracles.reference.__all__)


def test_a_name_that_is_nowhere_is_said() -> None:
    with pytest.raises(AttributeError, match=r"module 'oracles.reference' has no attribute 'attentoin'"):
        getattr(oracles.reference, "attentoin")  # noqa: B009


def test_the_oracles_take_less_to_import_than_numpy() -> None:
    """Processor seconds, NumPy and ml_dtypes in both, the least of five: 0.28 beside 0.19 measured; 0.54 with all modules at once."""
    def seconds(statement: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", statement], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    numpy, oracles_too = (min(seconds(f"import {modules}") for _ in range(5)) for modules in ("numpy, ml_dtypes", "oracles.reference"))
    assert oracles_too < 2.0 * numpy
