"""The salt of a prefix cache: everything but the tokens that keys and values depend on, told apart from each other."""

from __future__ import annotations


def prefix_salt(**parts: str | int | bytes | None) -> bytes:
    """One salt from named parts (an adapter's id, a tenant, the hash of an image): equal exactly where names and values are.

        for each part, by name: its name, the kind of its value, the value, each behind its length

    A part of None is as good as absent. Names keep one part from standing for another (vllm-project/vllm#44701: adapter X
    without a salt was salt X without an adapter), lengths keep two from running into each other, kinds keep 1 from "1".
    Parts go in whole: a hash that was cut to 16 bits is shared (LMCache/LMCache#4086). Of an adapter give the id, two may
    have one name (vllm-project/vllm#30931).

    >>> prefix_salt()
    b''
    >>> prefix_salt(adapter="x") == prefix_salt(tenant="x"), prefix_salt(a=1, b=2) == prefix_salt(b=2, a=1)
    (False, True)

    Raises TypeError for a value of another kind. Exact. Source: extra keys in the hash of a block, vllm-project/vllm#44706.
    """
    salt = b""
    for name, value in sorted(parts.items()):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int | bytes):
            raise TypeError(f"{name}: got {value!r}; want a str, an int or bytes")
        data = value if isinstance(value, bytes) else str(value).encode()
        for field in (name.encode(), type(value).__name__.encode(), data):
            salt += len(field).to_bytes(8, "big") + field
    return salt
