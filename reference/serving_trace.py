"""Serving trace: what paging buys. Requests put to a pool of blocks, and to one stretch of the greatest length for each, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from . import arguments
from .paging import BlockAllocator, OutOfBlocks


@dataclass(frozen=True)
class Request:
    """One request: its prompt, for whom it is (prefixes are shared under equal salts), and what will become of it.

    output    tokens that each of its samples will generate, unless it is aborted
    samples   answers wanted to one prompt, forks that share its blocks
    abort     generated tokens after which the client goes away, or None
    """

    prompt: tuple[int, ...]
    salt: bytes
    output: int
    samples: int
    abort: int | None

    @property
    def generated(self) -> int:
        return self.output if self.abort is None else min(self.output, self.abort)


@dataclass(frozen=True)
class ServedTrace:
    """What serving a trace took, in slots, each for the keys and values of one token. Means are over steps.

    block_size     slots of a block, or None for one stretch of the greatest length a sequence
    steps          until all is done; in each, every running sequence generates one token
    running, peak  sequences that run at once: mean and most
    waste          share of the slots taken that hold nothing
    hit_rate       share of the prompts' tokens, computed anew after a preemption too, that stood in the cache
    preemptions    sequences put back into the queue because the pool ran dry
    evictions      cached blocks whose content was given up
    table_entries  blocks that a sequence's table names, mean
    """

    block_size: int | None
    steps: int
    running: float
    peak: int
    waste: float
    hit_rate: float
    preemptions: int
    evictions: int
    table_entries: float


def draw_requests(
    number: int, *, seed: int, system_prompts: int = 8, system_length: int = 300, prompt_length: int = 64, output_length: int = 48,
    fork_share: float = 0.1, abort_share: float = 0.05,
) -> list[Request]:  # fmt: skip
    """Requests that begin with one of a few system prompts, Zipf-distributed, each prompt under a tenant's salt of its own.

    Lengths of the users' parts and of the outputs are geometric with the given means, at most 8 times the mean. A share of the
    requests wants 2 to 4 samples, and a share is aborted at a uniformly drawn token. The same seed gives the same requests.
    """
    g = np.random.default_rng(seed)
    rank = 1.0 / np.arange(1, system_prompts + 1)
    which = g.choice(system_prompts, size=number, p=rank / rank.sum())
    own = np.minimum(g.geometric(1.0 / prompt_length, number), 8 * prompt_length)
    output = np.minimum(g.geometric(1.0 / output_length, number), 8 * output_length)
    samples = np.where(g.random(number) < fork_share, g.integers(2, 5, number), 1)
    aborted = g.random(number) < abort_share
    leaves = (g.random(number) * output).astype(int)
    fresh = count(system_prompts * system_length)                               # no two users say the same
    return [
        Request((*range(which[i] * system_length, (which[i] + 1) * system_length), *(next(fresh) for _ in range(own[i]))),
                b"tenant %d" % (which[i] % 3), int(output[i]), int(samples[i]), int(leaves[i]) if aborted[i] else None)
        for i in range(number)
    ]  # fmt: skip


@dataclass
class _Job:
    """One sample of one request: its name, and the tokens it has generated so far."""

    name: tuple[int, int]
    request: Request
    generated: list[int]
    forks: int


def serve_paged(requests: Sequence[Request], *, slots: int, block_size: int) -> ServedTrace:
    """Serve a trace from a pool of slots // block_size blocks with prefix caching, continuous batching and recomputation.

    First come, first served. A request is admitted when its prompt finds blocks; its further samples are forks. Where a token finds
    no block, the sequence admitted last is freed and put back to the front of the queue, its tokens to be computed anew; then nobody
    is admitted until somebody has left.

    >>> twice = [Request((1, 2, 3, 4), b"", output=2, samples=1, abort=None)] * 2
    >>> served = serve_paged(twice, slots=16, block_size=2)
    >>> served.peak, served.hit_rate                                            # the second prompt is the first one's
    (2, 0.5)

    Raises ValueError where a request alone is too large for the pool.
    Source: Kwon et al. 2023 (arXiv 2309.06180), sections 4.3 to 4.5.
    """
    pool = BlockAllocator(arguments.whole_number("slots", slots, least=1) // block_size, block_size)
    longest = max((len(request.prompt) + request.generated for request in requests), default=0)
    if -(-longest // block_size) > pool.num_blocks:                             # else the last one left could always go on
        raise ValueError(f"slots: got {slots} in blocks of {block_size}; want room for the longest request, {longest} tokens")
    waiting = deque(_Job((i, 0), request, [], request.samples - 1) for i, request in enumerate(requests))
    running: dict[tuple[int, int], _Job] = {}                                   # by name, admitted last at the end
    seen = _Counts()
    blocked = False
    while waiting or running:
        while waiting and not blocked and _admitted(pool, waiting[0], running, seen):
            waiting.popleft()
        for job in list(running.values()):
            if job.name not in running:                                         # preempted in this very step
                continue
            if len(job.generated) >= job.request.generated:
                pool.free(running.pop(job.name).name)
                blocked = False
                continue
            while not _appended(pool, job):
                _, last = running.popitem()
                pool.free(last.name)
                waiting.appendleft(last)
                seen.preemptions += 1
                blocked = bool(running)
                if last is job:
                    break
        seen.step(pool, running, block_size)
    return seen.result(block_size, pool.stats()["evictions"])


def _admitted(pool: BlockAllocator, job: _Job, running: dict[tuple[int, int], _Job], seen: _Counts) -> bool:
    tokens = [*job.request.prompt, *job.generated]
    try:
        found = pool.allocate(job.name, tokens, salt=job.request.salt)
    except OutOfBlocks:
        return False
    pool.commit(job.name, len(tokens))
    seen.prompt_tokens += len(tokens)
    seen.found_tokens += found
    running[job.name] = job
    for sample in range(1, job.forks + 1):
        fork = _Job((job.name[0], sample), job.request, [], 0)
        pool.fork(job.name, fork.name)
        running[fork.name] = fork
    job.forks = 0
    return True


def _appended(pool: BlockAllocator, job: _Job) -> bool:
    n = len(job.request.prompt) + len(job.generated) + 1
    token = -1 - (job.name[0] * 8 + job.name[1]) * 65536 - len(job.generated)   # no two sequences say the same
    try:
        pool.append(job.name, token)
    except OutOfBlocks:
        return False
    job.generated.append(token)
    if n % pool.block_size == 0:
        pool.commit(job.name, n)
    return True


@dataclass
class _Counts:
    """Sums over the steps so far."""

    steps: int = 0
    peak: int = 0
    sequences: int = 0
    taken: int = 0
    idle: int = 0
    entries: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    found_tokens: int = 0

    def step(self, pool: BlockAllocator, running: dict[tuple[int, int], _Job], block_size: int) -> None:
        """Only last blocks have idle slots, and after a step no two sequences write to one."""
        lengths = [len(job.request.prompt) + len(job.generated) for job in running.values()]
        self.add(len(running), pool.stats()["used"] * block_size, sum(-n % block_size for n in lengths))
        self.entries += sum(-(-n // block_size) for n in lengths)

    def add(self, running: int, taken: int, idle: int) -> None:
        self.steps += 1
        self.peak = max(self.peak, running)
        self.sequences += running
        self.taken += taken
        self.idle += idle

    def result(self, block_size: int | None, evictions: int) -> ServedTrace:
        return ServedTrace(
            block_size, self.steps, self.sequences / max(self.steps, 1), self.peak, self.idle / max(self.taken, 1),
            self.found_tokens / max(self.prompt_tokens, 1), self.preemptions, evictions, self.entries / max(self.sequences, 1),
        )  # fmt: skip


def serve_contiguous(requests: Sequence[Request], *, slots: int, max_length: int) -> ServedTrace:
    """The same trace where every sequence, each sample too, gets a stretch of max_length slots at once; nothing is shared.

    Raises ValueError for a request longer than max_length, and where no stretch finds room.
    """
    room = arguments.whole_number("slots", slots, least=1) // max_length
    longest = max((len(request.prompt) + request.generated for request in requests), default=0)
    if longest > max_length or room == 0:
        raise ValueError(f"max_length: got {max_length} with {slots} slots; want {longest}, the longest request, to {slots}")
    waiting = deque(request for request in requests for _ in range(request.samples))
    running: list[tuple[Request, int]] = []                                     # and the tokens each has generated
    seen = _Counts()
    while waiting or running:
        while waiting and len(running) < room:
            running.append((waiting.popleft(), 0))
        running = list(_stepped(running))
        held = sum(len(request.prompt) + done for request, done in running)
        seen.add(len(running), len(running) * max_length, len(running) * max_length - held)
        seen.entries += len(running)
    return seen.result(None, 0)


def _stepped(running: list[tuple[Request, int]]) -> Iterator[tuple[Request, int]]:
    for request, done in running:
        if done < request.generated:
            yield request, done + 1
