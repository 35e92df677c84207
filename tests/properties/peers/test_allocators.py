"""Released block allocators under the laws of one, with -m more_peers where they are installed; what is said where they are not."""

from __future__ import annotations

from importlib import import_module, metadata

import pytest

from oracles.properties import check
from oracles.properties.declaration import UsageError
from oracles.properties.peers import PEER_MODULES

PEERS = [peer for peer, module in PEER_MODULES.items() if module.endswith("_allocator")]
NOT_THERE = {"vllm_pool": ("fork", "truncate", "evict"), "sglang_radix": ("fork", "truncate")}
CALL_SECONDS = 300.0                                                            # the import takes up to 40 s


@pytest.mark.parametrize("peer", PEERS)
def test_a_missing_library_is_bad_usage(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    library = peer.partition("_")[0]
    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UsageError, match=f"{library} cannot be imported; want it: pip install {library}"):
        import_module(f"oracles.properties.peers.{PEER_MODULES[peer]}").objects(peer)
    with pytest.raises(UsageError, match=f"{library} cannot be imported"):
        check("block_allocator", f"peers:{peer}", budget=0, in_process=True)


@pytest.mark.parametrize("operation", ["attention", "kv_cache"])
@pytest.mark.parametrize("peer", PEERS)
def test_it_has_no_other_operation(peer: str, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0")
    with pytest.raises(UsageError, match=f"peers:{peer} has no {operation}"):
        check(operation, f"peers:{peer}", budget=0, in_process=True)


@pytest.mark.more_peers
@pytest.mark.parametrize("peer", PEERS)
def test_it_holds(peer: str) -> None:
    """20 to 30 s of import, then 5 to 15 s."""
    report = check("block_allocator", f"peers:{peer}", budget=20, call_seconds=CALL_SECONDS)
    assert [(v.law, v.reason) for v in report.verdicts if v.status == "failed"] == []
    assert report.held
    assert report.version.startswith(f"{peer.partition('_')[0]} ")
    assert report.not_covered == tuple(f"{method}: the subject has no such method" for method in NOT_THERE[peer])
