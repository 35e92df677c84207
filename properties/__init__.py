"""What must hold: operations, cases, bounds, laws, and the checker that holds a subject to them."""

from .arithmetic import Arithmetic

__all__ = ["Arithmetic"]
