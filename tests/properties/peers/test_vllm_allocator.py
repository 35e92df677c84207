"""vLLM's block pool under the laws of a block allocator, with -m more_peers where vLLM is installed; and what is said where it is not."""

from __future__ import annotations

from importlib import metadata

import pytest

from oracles.properties import check
from oracles.properties.declaration import UsageError
from oracles.properties.peers import PEER_MODULES, vllm_allocator


def test_it_is_a_peer() -> None:
    assert PEER_MODULES["vllm_pool"] == "vllm_allocator"


def test_a_missing_library_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UsageError, match="vllm cannot be imported; want it: pip install vllm"):
        vllm_allocator.objects("vllm_pool")
    with pytest.raises(UsageError, match="vllm cannot be imported"):
        check("block_allocator", "peers:vllm_pool", budget=0, in_process=True)


@pytest.mark.parametrize("operation", ["attention", "kv_cache"])
def test_it_has_no_other_operation(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0")
    with pytest.raises(UsageError, match=f"peers:vllm_pool has no {operation}"):
        check(operation, "peers:vllm_pool", budget=0, in_process=True)


@pytest.mark.more_peers
def test_it_holds() -> None:
    """20 s of import, then 5 s."""
    report = check("block_allocator", "peers:vllm_pool", budget=20, call_seconds=300.0)
    assert [(v.law, v.reason) for v in report.verdicts if v.status == "failed"] == []
    assert report.held
