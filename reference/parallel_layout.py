"""Parallel layout: over how many ranks, and how, a decoder is spread; read from a few letters, and refused where it does not divide."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from . import arguments
from .pipeline_schedule import KINDS
from .placement import Mesh
from .transformer import Decoder

CONTEXTS = ("ring", "zigzag", "all_to_all")
_KNOWN = "dp, ep, cp, tp, pp, zero and mb with a number, sp, as in dp2.cp2:zigzag.tp2.sp.pp2:1f1b.zero3"


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """dp ep cp tp pp ranks in all.

    dp           data parallel: sequences, weights everywhere the same
    ep           expert parallel: sequences too, and the experts
    cp           context parallel: parts of each sequence; `context` ring, zigzag (a ring of evened-out parts) or all_to_all
    tp           tensor parallel: heads, hidden width, vocabulary
    sp           sequence parallel: between the layers the ranks of tp hold parts of the sequence
    pp           pipeline stages, with `chunks` pieces of the model each; `schedule` one of gpipe, 1f1b, interleaved, zero_bubble
    zero         the stage in which moments, gradients and weights are shared out over dp, ep and cp
    microbatches of each step, None: one, and twice the stages where there are some

    >>> ParallelLayout.read("dp2.tp2.pp2:gpipe").ranks, str(ParallelLayout.read("tp2.sp.zero3"))
    (8, 'tp2.sp.zero3')

    Raises ValueError for what is no layout in itself; `fit` says whether a decoder and a batch can be cut so.
    """

    dp: int = 1
    ep: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1
    sp: bool = False
    zero: int = 0
    context: str = "ring"
    schedule: str = "1f1b"
    chunks: int = 1
    microbatches: int | None = None

    def __post_init__(self) -> None:
        for name in ("dp", "ep", "cp", "tp", "pp", "chunks"):
            arguments.whole_number(name, getattr(self, name), least=1)
        if self.context not in CONTEXTS:
            raise ValueError(f"cp: got {self.context!r}; want one of {', '.join(CONTEXTS)}")
        if self.schedule not in KINDS:
            raise ValueError(f"pp: got {self.schedule!r}; want one of {', '.join(KINDS)}")
        if self.sp and self.tp == 1:
            raise ValueError("sp: got tp1; want more than one rank of tp, over which the sequence is cut")
        if not 0 <= arguments.whole_number("zero", self.zero, least=0) <= 3:
            raise ValueError(f"zero: got {self.zero}; want 0, 1, 2 or 3")
        if self.microbatches is not None:
            arguments.whole_number("mb", self.microbatches, least=1)
        if self.chunks > 1 and self.schedule != "interleaved":
            raise ValueError(f"pp: got {self.chunks} chunks for {self.schedule}; want 1, or interleaved")

    @classmethod
    def read(cls, text: str) -> ParallelLayout:
        """The layout that a text such as dp2.cp2:zigzag.tp2.sp.pp2:interleaved.zero3.mb4 means; sp2 beside tp2 is sp."""
        found: dict[str, Any] = {}
        for part in text.split("."):
            match = re.fullmatch(r"(dp|ep|tp|zero|mb)(\d+)|(cp|pp)(\d+)(?::(\w+))?|(sp)(\d*)", part)
            if match is None:
                raise ValueError(f"layout: got {part!r} in {text!r}; want parts joined by dots: {_KNOWN}")
            name, number, how = match[1] or match[3] or match[6], match[2] or match[4] or match[7], match[5]
            key = "microbatches" if name == "mb" else name
            if key in found:
                raise ValueError(f"layout: got {name} twice in {text!r}; want it once")
            found[key] = int(number) if number else True
            if how:
                found["context" if name == "cp" else "schedule"] = how
        if found.get("schedule") == "interleaved":
            found["chunks"] = 2
        if type(found.get("sp")) is int:
            if found["sp"] != found.get("tp", 1):
                raise ValueError(f"sp: got {found['sp']} beside tp {found.get('tp', 1)}; want the same number, for sp cuts over tp's ranks")
            found["sp"] = True
        return cls(**found)

    def __str__(self) -> str:
        sizes = {"dp": "", "ep": "", "cp": self.context, "tp": "", "pp": self.schedule}
        parts = []
        for name, how in sizes.items():
            if getattr(self, name) > 1:
                parts.append(f"{name}{getattr(self, name)}" + (f":{how}" if how not in ("", "ring", "1f1b") else ""))
            if name == "tp" and self.sp:
                parts.append("sp")
        parts += [f"zero{self.zero}"] if self.zero else []
        parts += [f"mb{self.microbatches}"] if self.microbatches is not None else []
        return ".".join(parts) or "dp1"

    @property
    def ranks(self) -> int:
        return self.dp * self.ep * self.cp * self.tp * self.pp

    @property
    def mesh(self) -> Mesh:
        """The ranks of one pipeline stage."""
        return Mesh({"dp": self.dp, "ep": self.ep, "cp": self.cp, "tp": self.tp})

    @property
    def pieces(self) -> int:
        return self.pp * self.chunks

    @property
    def steps(self) -> int:
        """Micro-batches of one step."""
        return self.microbatches or (2 * self.pp if self.pp > 1 else 1)

    def fit(self, decoder: Decoder, batch: int, length: int) -> None:
        """Raises ValueError naming the axis, what came and what is wanted, where this decoder or this batch cannot be cut so."""
        whole = self.dp * self.ep * self.steps
        cut = self.cp * (2 if self.context == "zigzag" and self.cp > 1 else 1) * (self.tp if self.sp else 1)
        by_heads = self.tp * (self.cp if self.context == "all_to_all" else 1)
        for name, n, parts, what in (
            ("dp, ep, mb", batch, whole, f"sequences for {self.dp} x {self.ep} ranks and {self.steps} micro-batches"),
            ("cp, sp", length, cut, f"tokens for {cut} parts"),
            ("tp", decoder.heads, by_heads, f"query heads for {by_heads} ranks"),
            ("tp", decoder.kv_heads, by_heads, f"key/value heads for {by_heads} ranks"),
            ("tp", decoder.hidden, self.tp, f"of hidden width for {self.tp} ranks"),
            ("ep", decoder.experts or 1, self.ep, f"experts for {self.ep} ranks"),
        ):
            if n % parts:
                raise ValueError(f"{name}: got {n} {what}; want a multiple of {parts}")
        if decoder.vocabulary < self.tp:
            raise ValueError(f"tp: got a vocabulary of {decoder.vocabulary} for {self.tp} ranks; want at least one token each")
        if decoder.layers < self.pieces:
            raise ValueError(f"pp: got {decoder.layers} layers for {self.pp} stages of {self.chunks}; want at least {self.pieces}")
        if self.schedule == "interleaved" and self.steps % self.pp:
            raise ValueError(f"mb: got {self.steps} micro-batches for {self.pp} stages; want a multiple of {self.pp} to interleave them")
        if decoder.window is not None and self.cp > 1:
            raise ValueError(f"cp: got a window of {decoder.window} for {self.cp} ranks; want no window: rings see all that is before")
        if decoder.latent is not None:
            raise ValueError(f"layout: got latent attention ({decoder.latent}); want grouped heads")
