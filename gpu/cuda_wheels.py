"""NVIDIA's wheels: where pip put their headers and libraries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def wheel_folders() -> list[Path]:
    """The folders that hold `include` and `lib` of the CUDA 13 wheels; empty where none is installed."""
    found = find_spec("nvidia")
    places = list(found.submodule_search_locations or ()) if found else []
    return [Path(place) / "cu13" for place in places if (Path(place) / "cu13").is_dir()]
