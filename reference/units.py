"""Units: counts of bytes shown in a unit that is named, decimal (GB = 10^9) or binary (GiB = 2^30), never one for the other."""

from __future__ import annotations

from . import arguments

UNITS: dict[str, int] = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def in_unit(count: float, unit: str) -> float:
    """A number of bytes in a unit, one division: GB = 10^9 bytes, GiB = 2^30 bytes.

    >>> in_unit(80 * 2**30, "GiB"), in_unit(80 * 2**30, "GB")
    (80.0, 85.89934592)

    Raises ValueError for an unknown unit. Source: IEC 80000-13:2008.
    """
    return arguments.real_number("count", count) / _size(unit)


def show_bytes(count: float, unit: str, *, digits: int = 2) -> str:
    """A number of bytes for people, its unit behind it.

    >>> show_bytes(112 * 10**9, "GiB", digits=1), show_bytes(112 * 10**9, "GB", digits=0)
    ('104.3 GiB', '112 GB')

    Raises ValueError for an unknown unit.
    """
    return f"{in_unit(count, unit):,.{arguments.whole_number('digits', digits, least=0)}f} {unit}"


def of_unit(number: float, unit: str) -> int:
    """The bytes that a number of units are, to the nearest whole one.

    >>> of_unit(80, "GB"), of_unit(80, "GiB")
    (80000000000, 85899345920)

    Raises ValueError for an unknown unit and a negative number.
    """
    number = arguments.real_number("number", number)
    if number < 0.0:
        raise ValueError(f"number: got {number}; want none below 0")
    return round(number * _size(unit))


def _size(unit: str) -> int:
    if unit not in UNITS:
        raise ValueError(f"unit: got {unit!r}; want one of {', '.join(UNITS)}")
    return UNITS[unit]
