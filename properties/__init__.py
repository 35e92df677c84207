"""What must hold: operations, cases, bounds, laws, and the checker that holds a subject to them.

`subject`, `mutant`, `variant` and `Arithmetic` come at once; `check` and `suite` are imported when first asked for, so that a
kernel's own file can declare itself without paying for the checker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arithmetic import Arithmetic
from .declaration import UsageError, subject
from .zoo.specimen import mutant, variant

if TYPE_CHECKING:
    from .checker import check
    from .pytest_suite import suite

__all__ = ["Arithmetic", "UsageError", "check", "mutant", "subject", "suite", "variant"]


def __getattr__(name: str) -> Any:
    if name == "check":
        from .checker import check

        return check
    if name == "suite":
        from .pytest_suite import suite

        return suite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
