"""Peers that the extra `peers` does not install: their tests run where -m names them."""

from __future__ import annotations

import pytest

MARKER = "more_peers"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}: needs MLX (run with -m {MARKER})")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if MARKER in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker(MARKER)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
