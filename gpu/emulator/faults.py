"""KernelFault: what the emulator found wrong in a kernel, as an exception with fields."""

from __future__ import annotations

from dataclasses import dataclass

# In the order in which they are told: what is more often the cause of another comes first.
KINDS = (
    "async_copy", "race", "out_of_bounds", "misaligned", "uninitialised", "write_to_const", "divergence", "launch", "time_limit",
    "undefined", "memory",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fault: kind (one of KINDS), where and who.

    places     source lines "file.cu:42": of the access at fault, or of both accesses (the earlier one first): of a race, or of a cp.async
               and what touches its bytes before the wait
    threads    their linear numbers in the block, in the same order
    block      blockIdx of the (later) access
    array      the array or shared variable it concerns, or ""
    offset     bytes from its start
    """

    kind: str
    message: str
    places: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    block: tuple[int, int, int] = (0, 0, 0)
    array: str = ""
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.message}" + (f" [{' and '.join(self.places)}]" if self.places else "")


class KernelFault(RuntimeError):
    """The kernel did what a CUDA kernel must not. `findings` holds each fault; kind, array, places, … are those of the first."""

    def __init__(self, kernel: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(f"{kernel}: " + "\n".join(str(finding) for finding in findings))
        self.kernel, self.findings = kernel, findings

    def __getattr__(self, name: str) -> object:
        if name in ("kind", "message", "places", "threads", "block", "array", "offset"):
            return getattr(self.findings[0], name)
        raise AttributeError(name)
