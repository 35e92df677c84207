"""Allocator model: what the caller of a block allocator knows, kept beside any allocator. It follows the answers and predicts no block.

Which block is given, in what order cached ones go, what a hash is, when a copy is made: all that is the allocator's own choice. The
model writes keys and values where the tables lead, makes the copies that are asked for, and prepares for the laws what came of a call.
It needs nothing but its neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .allocator_moment import AllocatorMoment, Content, Sequence, Slot
from .play import unusable
from .sequence import RAISED, RETURNED, Answer, Call

ORDINARY = 2**31                                                                # tokens below this an allocator's hash has to tell apart
FRESH = 1_000_000                                                               # tokens from here on are in no sequence but the last

class AllocatorModel:
    """See the module.

    memory[block][offset]   the content whose keys and values stand there, or None
    valid[block]            contents that were committed in the block, and still stand there: what it may be found for
    sure[content]           the blocks that hold it, while nothing has happened after which it might be found no more
    let_go, looked_at       when the last table ceased to name a block; when it was last found by a look-up alone
    """

    def __init__(self, new: Call, abilities: frozenset[str]) -> None:
        self.new = new
        self.num_blocks, self.size = (int(n) for n in new.args[:2])
        self.caching = bool(new.option("prefix_caching", True)) and "finds" in abilities
        self.abilities = abilities
        self.sequences: dict[str, Sequence] = {}
        self.tables: dict[str, list[int]] = {}
        self.stats: dict[str, int] = {}
        self.memory: list[list[Content | None]] = [[None] * self.size for _ in range(self.num_blocks)]
        self.valid: list[set[Content]] = [set() for _ in range(self.num_blocks)]
        self.sure: dict[Content, set[int]] = {}
        self.let_go: dict[int, int] = {}
        self.looked_at: dict[int, int] = {}
        self.clock = 0
        self._last_calls = [Call("evict", (self.num_blocks,))] if "evict" in abilities else []
        if self.num_blocks:
            self._last_calls.append(Call("allocate", ("the whole pool", tuple(range(FRESH, FRESH + self.num_blocks * self.size)))))

    # What is asked of the allocator ---------------------------------------------------------------------------------------

    def looks(self, call: Call) -> list[Call]:
        named = [name for name in call.args[: 2 if call.method == "fork" else 1] if isinstance(name, str)]
        names = list(dict.fromkeys([*self.sequences, *named]))
        return [Call("table", (name,)) for name in names] + ([Call("stats")] if "stats" in self.abilities else [])

    def closing(self) -> Call | None:
        """Free everything, forget everything, fill the pool with one sequence of tokens never seen, and free that."""
        if self.sequences:
            return Call("free", (next(iter(self.sequences)),))
        return self._last_calls.pop(0) if self._last_calls else None

    # What is known ----------------------------------------------------------------------------------------------------------

    def named(self) -> frozenset[int]:
        """The blocks that tables name."""
        return frozenset(block for table in self.tables.values() for block in table)

    def places(self, block: int) -> list[tuple[str, int]]:
        """Where tables name a block: sequence and index."""
        return [(seq, i) for seq, table in self.tables.items() for i, b in enumerate(table) if b == block]

    def holders(self, content: Content) -> list[int]:
        """The blocks that may be found for a content."""
        return [block for block in range(self.num_blocks) if content in self.valid[block]]

    def must_find(self, tokens: list[int], salt: bytes) -> list[set[int]]:
        """For each leading block that has to be found, those that hold it. A whole prompt may be found but for its last block."""
        found: list[set[int]] = []
        for end in range(self.size, len(tokens) + 1, self.size):
            if (salt, tuple(tokens[:end])) not in self.sure:
                break
            found.append(self.sure[salt, tuple(tokens[:end])])
        return found[: max(0, len(tokens) - 1) // self.size]

    def surely_cached(self) -> list[int]:
        """Blocks that no table names and that are known to be kept: each the only holder of what it holds."""
        only = {next(iter(blocks)) for blocks in self.sure.values() if len(blocks) == 1}
        return [block for block in self.let_go if block in only]

    # Following --------------------------------------------------------------------------------------------------------------

    def follow(self, call: Call, answer: Answer, seen: list[Answer]) -> AllocatorMoment:
        self.clock += 1
        answer, seen = _listed(answer), [_listed(look) for look in seen]
        moment = AllocatorMoment(call, answer, self, dict(self.tables), self.tables, self.stats, self.stats, self.named())
        moment.room = self.num_blocks - len(moment.in_use)
        moment.defect = unusable(call, answer)
        if moment.defect:
            return moment
        moment.wrong_call = self._wrong_call(call)
        moment.need = 0 if moment.wrong_call else self._need(call)
        moment.defect = self._read(moment, seen) or self._out_of_form(moment)
        if moment.defect:
            return moment
        if moment.returned and moment.wrong_call:
            moment.lost = True
        elif moment.returned:
            self._apply(moment)
        else:
            self._looked_up(call)
        self.tables, self.stats = moment.tables, moment.stats
        return moment

    def _wrong_call(self, call: Call) -> str:
        seq = call.args[0] if call.args else None
        if call.method == "allocate":
            return f"seq {seq!r} is in use" if seq in self.sequences else ""
        if call.method in ("append", "commit", "truncate", "free", "fork", "table"):
            if seq not in self.sequences:
                return f"seq {seq!r} is unknown"
            if call.method == "fork":
                return f"seq {call.args[1]!r} is in use" if call.args[1] in self.sequences else ""
            if call.method in ("commit", "truncate") and not 0 <= call.args[1] <= len(self.sequences[seq].tokens):
                return f"n = {call.args[1]} is not in 0..{len(self.sequences[seq].tokens)}"
        return ""

    def _need(self, call: Call) -> int:
        """The most blocks that a legal allocator can need for a call: it may copy early, and need not find a prompt's last block."""
        if call.method == "allocate":
            tokens = list(call.args[1])
            found = self.must_find(tokens, call.option("salt", b""))
            unnamed = sum(bool(blocks - self.named()) for blocks in found)
            return -(-len(tokens) // self.size) - len(found) + unnamed
        if call.method == "append":
            n, table = len(self.sequences[call.args[0]].tokens), self.tables[call.args[0]]
            return int(n % self.size == 0 or len(self.places(table[-1])) > 1 or bool(self.valid[table[-1]]))
        return len(self.tables[call.args[0]]) if call.method == "fork" else 0

    def _read(self, moment: AllocatorMoment, seen: list[Answer]) -> str:
        """Read what the allocator says of itself after the call; what is wrong with its form, or ""."""
        tables: dict[str, list[int]] = {}
        for look, answer in zip(self.looks(moment.call), seen, strict=True):
            if answer.kind not in (RETURNED, RAISED):
                return unusable(look, answer)
            if look.method == "stats":
                counts = answer.value if isinstance(answer.value, dict) else {}
                if not {"used", "free"} <= set(counts) or not all(isinstance(count, int) for count in counts.values()):
                    return f"{look} after {moment.call}: {answer.message or answer.value}; want a dict of num_blocks, used, cached, free"
                moment.stats = answer.value
            elif answer.kind == RETURNED:
                wrong = self._no_table(answer.value)
                if wrong:
                    return f"{look} after {moment.call} is {answer.value!r}: {wrong}"
                tables[look.args[0]] = answer.value
            elif not answer.raised("ValueError"):
                return f"{look} after {moment.call} raised {answer.message}; want a list, or ValueError for an unknown seq"
        live = self._live_after(moment.call) if moment.returned and not moment.wrong_call else list(self.sequences)
        moment.undead = [seq for seq in tables if seq not in live]
        moment.tables = {seq: table for seq, table in tables.items() if seq in live}
        missing = [seq for seq in live if seq not in tables]
        return f"table({missing[0]!r}) raised ValueError after {moment.call}, though the sequence lives" if missing else ""

    def _no_table(self, value: Any) -> str:
        if not isinstance(value, list) or not all(isinstance(block, int) and not isinstance(block, bool) for block in value):
            return "no list of block numbers"
        strangers = [block for block in value if not 0 <= block < self.num_blocks]
        return f"block {strangers[0]} is none of 0..{self.num_blocks - 1}" if strangers else ""

    def _out_of_form(self, moment: AllocatorMoment) -> str:
        """What is wrong with the form of the answer itself, or ""."""
        call, answer, value = moment.call, moment.answer, moment.answer.value
        if answer.kind == RAISED:
            expected = "ValueError" if moment.wrong_call else "OutOfBlocks"
            allowed = moment.wrong_call and answer.raised("ValueError")
            takes = call.method in ("allocate", "append", "fork")
            if allowed or (answer.raised("OutOfBlocks") and takes):
                return ""
            return f"{call} raised {answer.message}; want " + (expected if takes or moment.wrong_call else "a result")
        if moment.wrong_call:
            return ""
        if call.method == "allocate" and value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            return f"{call} returned {value!r}; want the number of tokens found"
        if call.method in ("match_prefix", "evict") and self._no_table(value):
            return f"{call} returned {value!r}: {self._no_table(value)}"
        if call.method in ("append", "fork") and _pairs(value) is None:
            return f"{call} returned {value!r}; want None, a pair (source, target) or a list of pairs"
        copies = (_pairs(value) or []) if call.method in ("append", "fork") else []
        if any(self._no_table(list(pair)) for pair in copies):
            return f"{call} returned {value!r}: {self._no_table([block for pair in copies for block in pair])}"
        return ""

    def _live_after(self, call: Call) -> list[str]:
        live = [seq for seq in self.sequences if call.method != "free" or seq != call.args[0]]
        return [*live, *([call.args[0]] if call.method == "allocate" else [call.args[1]] if call.method == "fork" else [])]

    def _apply(self, moment: AllocatorMoment) -> None:
        call = moment.call
        acting = ""
        first = 0                                                               # of the tokens whose data are written now
        if call.method == "allocate":
            acting, tokens, salt = call.args[0], list(call.args[1]), call.option("salt", b"")
            moment.count = int(moment.answer.value or 0)
            moment.fewest = len(self.must_find(tokens, salt))
            first = min(max(0, moment.count), len(tokens)) // self.size * self.size
            self.sequences[acting] = Sequence(tokens, salt, first)
            moment.found = [(block, (salt, tuple(tokens[: (i + 1) * self.size])))
                            for i, block in enumerate(moment.tables[acting][: first // self.size])]  # fmt: skip
        elif call.method == "append":
            acting = call.args[0]
            first = len(self.sequences[acting].tokens)
            self._doubt(self.tables[acting], first)
            self.sequences[acting].tokens.append(call.args[1])
        elif call.method == "fork":
            acting, parent = call.args[1], self.sequences[call.args[0]]
            self.sequences[acting] = Sequence(list(parent.tokens), parent.salt, parent.committed)
            first = len(parent.tokens)
        elif call.method == "match_prefix":
            tokens, salt = list(call.args[0]), call.option("salt", b"")
            moment.fewest = len(self.must_find(tokens, salt))
            moment.found = [(block, (salt, tuple(tokens[: (i + 1) * self.size]))) for i, block in enumerate(moment.answer.value)]
            moment.count = len(moment.found)
            self.looked_at |= {block: self.clock for block, _ in moment.found}
        elif call.method in ("truncate", "free"):
            self._shorten(call)
        elif call.method == "commit":
            acting = call.args[0]
            first = len(self.sequences[acting].tokens)
        moment.verdicts = {block: self._why_not(block, content) for block, content in moment.found}
        self._take(moment, acting)
        if acting:
            self._write(moment, acting, first)
        if call.method == "commit":
            self._publish(acting, call.args[1])
        elif acting and "commit" not in self.abilities:                         # who has no commit is told by the call that adds tokens
            self._publish(acting, len(self.sequences[acting].tokens))
        if call.method == "evict":
            self._evict(moment, moment.answer.value)

    def _shorten(self, call: Call) -> None:
        if call.method == "free":
            del self.sequences[call.args[0]]
        else:
            s = self.sequences[call.args[0]]
            del s.tokens[call.args[1] :]
            s.committed = min(s.committed, call.args[1])

    def _why_not(self, block: int, content: Content) -> str:
        """Why a block must not be found for a content: "", "uncommitted", "salt", "tokens" or "given anew"."""
        if content in self.valid[block]:
            return ""
        if self.memory[block] == [(content[0], content[1][: len(content[1]) - left]) for left in reversed(range(self.size))]:
            return "uncommitted"
        if any(tokens == content[1] for _, tokens in self.valid[block]):
            return "salt"
        return "tokens" if self.valid[block] else "given anew"

    def _take(self, moment: AllocatorMoment, acting: str) -> None:
        """Blocks that tables name now and did not before, and those that they name no more."""
        hits = {block for block, _ in moment.found} if moment.call.method == "allocate" else set()
        before = set(moment.tables_before.get(acting, ()))
        for i, block in enumerate(moment.tables.get(acting, ())):
            wanted = self.sequences[acting].content((i + 1) * self.size)
            shared = moment.call.method == "fork" and block in moment.tables[moment.call.args[0]]
            if block in before or shared:
                continue
            if block in hits:
                moment.revived += block not in moment.in_use
            elif wanted in self.valid[block]:                                   # found, or given anew by chance: it makes no difference
                moment.perhaps += block not in moment.in_use
                self._doubt_block(block)
            else:
                moment.given.append(block)
        surely = set(self.surely_cached())
        moment.evicted = [block for block in dict.fromkeys(moment.given) if self.valid[block] and block not in moment.in_use]
        for block in moment.given:
            if block not in moment.in_use:
                self._lose(block)
                self.memory[block] = [None] * self.size
        self._compare_ages(moment, surely)
        named = {block for table in moment.tables.values() for block in table}
        moment.released = len(moment.in_use - named)
        for block in moment.in_use - named:
            self.let_go[block] = self.clock
        for block in named:
            self.let_go.pop(block, None)
            self.looked_at.pop(block, None)
        self.tables = moment.tables

    def _compare_ages(self, moment: AllocatorMoment, surely: set[int]) -> None:
        """Blocks taken although one that stays was unused for longer, whether looking up counts as use or not."""
        staying = set(self.surely_cached()) - set(moment.evicted)
        for taken in moment.evicted:
            for stays in sorted(staying) if taken in surely else ():
                if self.let_go[stays] < self.let_go[taken] and self._last_look(stays) < self._last_look(taken):
                    moment.too_recent.append((taken, stays))

    def _last_look(self, block: int) -> int:
        return max(self.let_go[block], self.looked_at.get(block, -1))

    def _write(self, moment: AllocatorMoment, acting: str, first: int) -> None:
        """The caller's part: the copies it was asked for, then the data of the tokens from `first` on."""
        changes: dict[Slot, Content | None] = {}
        if moment.call.method in ("append", "fork"):
            for source, target in _pairs(moment.answer.value) or []:
                changes |= {(target, offset): held for offset, held in enumerate(self.memory[source])}
        s, table = self.sequences[acting], moment.tables[acting]
        for t in range(first, len(s.tokens)):
            if t // self.size < len(table):
                changes[table[t // self.size], t % self.size] = s.content(t + 1)
        moment.written = len(changes)
        for (block, offset), new in changes.items():
            if self.memory[block][offset] == new:
                continue
            for seq, i in self.places(block):
                t = i * self.size + offset
                if seq != acting and t < len(self.sequences[seq].tokens) and self.sequences[seq].content(t + 1) != new:
                    moment.overwritten.append((seq, (block, offset)))
            self.memory[block][offset] = new
            self._lose(block)

    def _publish(self, seq: str, n: int) -> None:
        s = self.sequences[seq]
        first, s.committed = s.committed, max(s.committed, n)
        for i in range(first // self.size, min(s.committed // self.size, len(self.tables[seq]))):
            block, content = self.tables[seq][i], s.content((i + 1) * self.size)
            others = [other for other in self.holders(content) if other != block]
            self.valid[block].add(content)
            if not self.caching or not all(0 <= token < ORDINARY for token in content[1]):
                continue                                                        # it may be found, and need not
            if not others:
                self.sure[content] = {block}
            elif content in self.sure:
                self.sure[content].add(block)

    def _doubt(self, table: list[int], n: int) -> None:
        """A token is appended to a block that was published: whether it can still be found is the allocator's choice."""
        if n % self.size:
            self._doubt_block(table[-1])

    def _doubt_block(self, block: int) -> None:
        for content in self.valid[block]:
            self._unsure(content)

    def _lose(self, block: int) -> None:
        """What a block held is there no more."""
        self._doubt_block(block)
        self.valid[block] = set()

    def _unsure(self, content: Content) -> None:
        """Nor need what comes behind it be found: it may hang on this."""
        self.sure = {(salt, tokens): blocks for (salt, tokens), blocks in self.sure.items()
                     if salt != content[0] or tokens[: len(content[1])] != content[1]}  # fmt: skip

    def _evict(self, moment: AllocatorMoment, blocks: list[int]) -> None:
        surely = set(self.surely_cached())
        moment.evicted = [block for block in blocks if block not in moment.in_use and block in self.let_go]
        for block in moment.evicted:
            self._lose(block)
        self._compare_ages(moment, surely)

    def _looked_up(self, call: Call) -> None:
        """A refused allocate may have looked for its tokens, which some count as use."""
        if call.method == "allocate":
            found = self.must_find([*call.args[1], 0], call.option("salt", b""))
            self.looked_at |= {block: self.clock for blocks in found for block in blocks}


def _listed(answer: Answer) -> Answer:
    """An array of block numbers is as good as a list."""
    return replace(answer, value=answer.value.tolist()) if hasattr(answer.value, "tolist") else answer


def _pairs(value: Any) -> list[tuple[int, int]] | None:
    """Block copies as a list of pairs; None where they are none."""
    if value is None:
        return []
    if isinstance(value, list) and len(value) == 2 and all(isinstance(block, int) for block in value):
        return [(value[0], value[1])]
    if isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 and all(isinstance(b, int) for b in p) for p in value):
        return [(pair[0], pair[1]) for pair in value]
    return None
