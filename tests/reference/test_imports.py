"""What `import oracles.reference` brings in."""

from __future__ import annotations

import subprocess
import sys

import oracles.reference

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
