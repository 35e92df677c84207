"""Routing and the balance loss of transformers' Mixtral on a CPU.

Address: https://github.com/huggingface/transformers/blob/main/src/transformers/models/mixtral/modeling_mixtral.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import experts as calls
from .installed import copy_of, library_version, versions_text

# name: of each operation the function in `calls` and what it declares; the router computes in float32 whatever it is given
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "transformers_mixtral": {
        "route": (calls.mixtral_route, {
            "dtypes": ("float32", "bfloat16", "float16"), "arithmetic": Arithmetic(out="float32"), "only": {"normalize": ["yes"]},
            "conventions": {"route_ties": "any"}}),
        "balance_loss": (calls.mixtral_balance, {
            "dtypes": ("float32",), "conventions": {"balance_share": "of_tokens", "all_ignored": "nan"}}),
    },
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The versions of transformers and of PyTorch under it."""
    return {library: library_version(library, extra="transformers") for library in ("transformers", "torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The operations of a peer, declared. Raises UsageError where a library is missing."""
    version = versions_text(library_versions(name))
    common = {"name": name, "framework": "torch", "version": version}
    return tuple(subject(operation, **{**common, **declared})(copy_of(function))
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip
