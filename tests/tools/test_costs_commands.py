"""`oracles costs`: the same figures on the screen, as JSON and in a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SMALL = ("costs", "paging", "--requests", "50", "--slots", "4096", "--max-length", "1024", "--block-size", "8", "--block-size", "64")


def test_the_table_and_the_json_say_the_same(oracles: Any) -> None:
    ended = oracles(*SMALL)
    assert ended.code == 0
    data = oracles(*SMALL, "--json").data
    assert [row["block_size"] for row in data["paged"]] == [8, 64]
    for row in (data["contiguous"], *data["paged"]):
        name = "contiguous" if row["block_size"] is None else str(row["block_size"])
        (line,) = [line for line in ended.out.splitlines() if line.split()[:1] == [name]]
        assert f"{100 * row['waste']:.1f}" in line
        assert f"{row['steps']:,}" in line
    assert "50 requests, 4,096 slots, seed 0" in " ".join(ended.out.split())


def test_a_plot_is_written_whole(oracles: Any, tmp_path: Path) -> None:
    ended = oracles(*SMALL, "--plot", "plots/trade_off.png")
    assert ended.code == 0
    assert (tmp_path / "plots" / "trade_off.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["trade_off.png"]


def test_a_plot_of_an_unknown_kind_is_refused_and_nothing_is_left(oracles: Any, tmp_path: Path) -> None:
    ended = oracles(*SMALL, "--plot", "plots/trade_off.xyz")
    assert ended.code == 2
    assert "plot:" in ended.err
    assert not list((tmp_path / "plots").iterdir())


def test_a_pool_too_small_is_bad_usage(oracles: Any) -> None:
    ended = oracles("costs", "paging", "--requests", "50", "--slots", "100")
    assert ended.code == 2
    assert "max_length: got 2048 with 100 slots" in " ".join(ended.err.split())
