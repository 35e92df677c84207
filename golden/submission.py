"""Submission: a folder of answers that somebody else wrote, read with care. Nothing in it is run, imported, followed or believed."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from oracles.properties import safetensors_file
from oracles.properties.arithmetic import FORMAT_FIELDS, Arithmetic
from oracles.properties.conventions import CONVENTIONS, declared
from oracles.properties.safetensors_file import Array

DECLARATION, ANSWERS = "declaration.json", "answers"
MOST_SHOWN, LONGEST, MOST_FILES = 16, 300, 100_000                              # names in a flag, characters of a text, files walked


class AnswerFault(ValueError):
    """Why a file of a submission cannot be judged. `kind` is missing, link, no file, too large or unreadable."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True)
class Declared:
    """How a submission says it computes; `flags` are what whoever judges should know of that."""

    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    conventions: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Arithmetic, tuple[tuple[str, str], ...]]:
        """Equal for those who declare the same."""
        return self.arithmetic, tuple(sorted(self.conventions.items()))

    def conventions_of(self, operation: str) -> dict[str, str]:
        """All conventions for one operation: the declared ones that concern it over the oracle's own."""
        mine = {name: value for name, value in self.conventions.items() if operation in CONVENTIONS[name].operations}
        return declared(mine, operation)


def shown(text: str) -> str:
    """Text of a stranger's in one line that can be printed anywhere: no control characters, no halves of characters, not too long."""
    readable = "".join(c if unicodedata.category(c)[0] != "C" else "?" for c in text)
    return readable if len(readable) <= LONGEST else readable[: LONGEST - 1] + "…"


def content_of(root: Path, file: str, limit: int) -> bytes:
    """The bytes of a file below `root`. Raises AnswerFault where it is not there, no plain file, or larger than `limit`.

    No link is followed below root, so that nothing outside is read; a pipe is not waited for.
    """
    path = root
    for part in Path(file).parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except OSError:
            raise AnswerFault("missing", f"no {file}") from None
        if stat.S_ISLNK(mode):
            raise AnswerFault("link", f"{path.relative_to(root)} is a link; want a file")
    if not stat.S_ISREG(mode):
        raise AnswerFault("no file", f"{file} is no plain file")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            data = opened.read(limit + 1)
    except OSError as error:
        raise AnswerFault("unreadable", f"{file}: {error.strerror}") from None
    if len(data) > limit:
        raise AnswerFault("too large", f"{file} has more than {limit:,} bytes")
    return data


def tensors_of(root: Path, file: str, limit: int) -> dict[str, Array]:
    """The tensors of an answer. Raises AnswerFault."""
    data = content_of(root, file, limit)
    try:
        return safetensors_file.loads(data)[0]
    except (ValueError, OverflowError) as error:
        raise AnswerFault("unreadable", f"{file}: {shown(str(error))}") from None


def json_of(root: Path, file: str, limit: int) -> Any:
    """The content of a JSON file, in which NaN and infinity do not stand. Raises AnswerFault."""
    def refuse(word: str) -> None:
        raise ValueError(f"holds {word}")

    try:
        return json.loads(content_of(root, file, limit), parse_constant=refuse)
    except AnswerFault:
        raise
    except (ValueError, RecursionError) as error:
        raise AnswerFault("unreadable", f"{file} is no JSON ({shown(str(error))})") from None


def declared_in(root: Path, file: str = DECLARATION) -> Declared:
    """What a submission declares, the defaults where it declares nothing. Raises AnswerFault for what is no declaration."""
    try:
        content = json_of(root, file, 2**16)
    except AnswerFault as fault:
        if fault.kind == "missing":
            return Declared()
        raise
    try:
        if not isinstance(content, dict) or not set(content) <= {"arithmetic", "conventions"}:
            raise ValueError('want {"arithmetic": …, "conventions": {…}}')
        arithmetic, conventions = content.get("arithmetic", "default"), content.get("conventions", {})
        result = Declared(_arithmetic(arithmetic), _conventions(conventions))
    except (ValueError, TypeError, AttributeError) as error:
        raise AnswerFault("unreadable", f"{file}: {shown(str(error))}") from None
    flags = []
    if result.arithmetic != Arithmetic():
        flags.append(f"declares the arithmetic {shown(json.dumps(arithmetic))}")
    if result.conventions:
        flags.append(f"declares the conventions {shown(json.dumps(conventions))}")
    return Declared(result.arithmetic, result.conventions, tuple(flags))


def _arithmetic(given: Any) -> Arithmetic:
    """A preset or fields of an arithmetic, each of its type. Raises ValueError."""
    if isinstance(given, str):
        return Arithmetic.preset(given)
    if not isinstance(given, dict):
        raise ValueError(f"arithmetic: got {given!r}; want the name of a preset, or fields")
    known = {one.name: one.default for one in fields(Arithmetic)}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"arithmetic: got {name!r}; want some of {', '.join(known)}")
        wanted: tuple[type, ...] = (str, type(None)) if name in FORMAT_FIELDS else (int, float) if type(known[name]) is float else (int,)
        wanted = (bool,) if type(known[name]) is bool else wanted
        if type(value) not in wanted or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"arithmetic: got {name} = {value!r}; want {' or '.join(t.__name__ for t in wanted)}")
    return Arithmetic(**given)


def _conventions(given: Any) -> dict[str, str]:
    """Conventions by name, each of some operation's. Raises ValueError."""
    if not isinstance(given, dict):
        raise ValueError(f"conventions: got {given!r}; want names and values")
    for name, value in given.items():
        if name not in CONVENTIONS:
            raise ValueError(f"conventions: got {name!r}; want some of {', '.join(CONVENTIONS)}")
        declared({name: value}, CONVENTIONS[name].operations[0])
    return given


def surplus_tensors(unknown: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A flag with the tensors that answer nothing, as far as they fit; `unknown` is their names -> the files that hold them."""
    if unknown:
        told = [f"{names} in {files[0]}" + (f" and {len(files) - 1} more" if files[1:] else "") for names, files in unknown.items()]
        more = f"; {len(told) - MOST_SHOWN} other kinds" if len(told) > MOST_SHOWN else ""
        yield f"tensors that answer nothing: {'; '.join(told[:MOST_SHOWN])}{more}"


def surplus(root: Path, known: Iterable[str], others: Collection[str]) -> Iterator[str]:
    """A flag with the files below `answers` that answer no case, as far as they fit; `others` are operations not judged this time."""
    if (root / ANSWERS).is_symlink() or not (root / ANSWERS).is_dir():
        return
    names = set(known)
    found = [file for file in itertools.islice(_files(root), MOST_FILES) if file not in names and file.partition("/")[0] not in others]
    if found:
        more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
        yield f"files that answer nothing: {', '.join(shown(name) for name in sorted(found)[:MOST_SHOWN])}{more}"


def _files(root: Path) -> Iterator[str]:
    for place, folders, files in os.walk(root / ANSWERS):                       # which follows no links
        for name in [*files, *(folder for folder in folders if (Path(place) / folder).is_symlink())]:
            yield (Path(place) / name).relative_to(root / ANSWERS).as_posix()
