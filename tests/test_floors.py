"""The house: imports only point down the floors, and what users import costs what we say it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent

# Each floor may import itself and those listed.
FLOORS = {
    "reference": set(),
    "gpu": set(),
    "properties": {"reference"},
    "golden": {"properties", "reference"},
    "tools": {"golden", "gpu", "properties", "reference"},
}
FILES = [(floor, path) for floor in FLOORS for path in sorted((TOP / floor).rglob("*.py"))]


def imported_floors(path: Path, floor: str) -> set[str]:
    """The floors a file imports from, in absolute and relative form, at any depth of its code."""
    found = set()
    depth = len(path.parts) - len((TOP / floor).parts)                          # more dots than that lead out of the floor
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level <= depth, f"{path}: a relative import leaves the floor {floor}"
            if node.level == 0 and node.module == "oracles":
                names = [f"oracles.{alias.name}" for alias in node.names]
            elif node.level == 0:
                names = [node.module or ""]
        found |= {name.split(".")[1] for name in names if name.startswith("oracles.")}
    return found


@pytest.mark.parametrize(("floor", "path"), FILES, ids=[str(path.relative_to(TOP)) for _, path in FILES])
def test_imports_only_point_down(floor: str, path: Path) -> None:
    assert imported_floors(path, floor) <= FLOORS[floor] | {floor}


def test_every_floor_has_files() -> None:
    assert {floor for floor, _ in FILES} == set(FLOORS)


@pytest.mark.parametrize("line", ["from oracles.tools import rendering", "from oracles import tools", "import oracles.tools.rendering"])
def test_an_import_that_points_up_is_seen(tmp_path: Path, line: str) -> None:
    upward = tmp_path / "upward.py"
    upward.write_text(f"def f():\n    {line}\n")
    assert imported_floors(upward, "reference") == {"tools"}


def loaded_after(statement: str) -> set[str]:
    """Top-level names in sys.modules after a statement, in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("heavy", ["hypothesis", "scipy", "rich", "typer", "torch", "jax", "onnxruntime"])
def test_declaring_a_kernel_does_not_load_the_checker(heavy: str) -> None:
    assert heavy not in loaded_after("from oracles.properties import subject, Arithmetic")


def test_every_python_file_stays_readable() -> None:
    long = {str(path.relative_to(TOP)): lines for path in TOP.rglob("*.py") if ".venv" not in path.parts and "build" not in path.parts
            and (lines := len(path.read_text().splitlines())) > 400}  # fmt: skip
    assert long == {}
