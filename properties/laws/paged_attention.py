"""The laws of attention through block tables: what pages, lengths and tables may not change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles.reference import FloatFormat

from ..case import Case
from ..declaration import Declaration
from ..law import NOTHING, Judgement, Law, law, within
from ..outcome import RAISED
from ..trial import Trial
from . import paged_terms as terms
from .attention_probes import (
    does_not_ignore,
    four_times_q_and_a_quarter_of_the_scale_change_no_bit,
    heads_read_their_own_keys,
    one_hot_values_show_the_weights,
    rounds_equal_weights,
    the_first_forbidden_key_stays_forbidden,
)
from .attention_relations import each_row_sees_its_number_of_keys, fits, widened
from .attention_terms import like, without
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    promised,
    repeats_give_the_same_bits,
    strides_are_respected,
)


def _through_pages(of_attention: Law, *, every: int) -> Law:
    """A law of attention on the same tokens in pages; only for laws that judge by what was wanted and allowed."""

    def prepare(case: Case) -> Case | None:
        prepared = None if terms.is_empty(case) else of_attention.prepare(terms.contiguous(case))
        return None if prepared is None else terms.paged(prepared, case)

    return replace(of_attention, prepare=prepare, every=every, minimise=False)


@law(every=2)
def queries_without_keys_are_empty(trial: Trial) -> Judgement:
    """A query that sees no key, of an empty sequence or by the mask, has output 0 and log-sum-exp -inf (or its sink), or what the
    subject declared; padding behind query_lengths has 0 and -inf, whatever the sinks.

    Allowed: 0 for a zero and for -inf, one rounding for a sink.
    """
    none = terms.counts(trial.case) == 0
    if not trial.answer or not none.any():
        return NOTHING
    allowed = {name: np.where(none.reshape(*none.shape, *[1] * (bound.ndim - 3)), bound, np.inf) for name, bound in trial.allowed.items()}
    return within(trial.answer, {name: trial.wanted[name] for name in trial.answer}, allowed)


def _uniform(case: Case) -> Case | None:
    if terms.is_empty(case):
        return None
    q, v = case.arrays["q"], case.arrays["v_pages"]
    generator = np.random.default_rng(int(case.hash, 16))
    values = np.where(np.isfinite(v.astype(np.float64)), generator.integers(-4, 5, v.shape).astype(np.float64), np.nan)
    k = np.where(np.isfinite(case.arrays["k_pages"].astype(np.float64)), 1.0, np.nan)
    return without(case, "sinks").with_arrays(q=like(q, np.zeros(q.shape)), k_pages=k.astype(q.dtype), v_pages=values.astype(v.dtype))


@law(prepare=_uniform, every=3, not_covered=rounds_equal_weights)
def equal_scores_average_exactly(trial: Trial) -> Judgement:
    """With Q = 0 all visible keys weigh the same: for 2^n of them and integer values, the output is the exact mean, once rounded.

    Whatever pages they stand in. Rows with another number of keys are left out. Without sinks. Allowed: 0.
    """
    if "out" not in trial.answer:
        return NOTHING
    count, a = terms.counts(trial.case), trial.arithmetic
    digits = min(FloatFormat(name).fraction_bits for name in (a.accumulate, a.elementwise))
    exact = (count > 0) & (count & (count - 1) == 0) & (count * 4 <= 2.0 ** (digits + 1))      # sums of integers up to 4 stay exact
    exact = (exact & (count * FloatFormat(a.probabilities).smallest <= 1.0))[..., None]
    wanted = FloatFormat(a.out).round(np.where(exact, trial.wanted["out"], 0.0))
    return within(trial.answer, {"out": wanted}, {"out": np.where(exact & np.ones(wanted.shape, bool), 0.0, np.inf)})


def _renumbered(case: Case) -> Case:
    """The pages in another order behind a new one of nobody, and the tables with them."""
    N = case.arrays["k_pages"].shape[0]
    order = np.random.default_rng(int(case.hash, 16)).permutation(N)            # the new page n + 1 is the old one order[n]
    numbers = np.append(np.argsort(order) + 1, -1)                              # -1 stays -1
    pages = {name: np.concatenate([case.arrays[name][:1], case.arrays[name][order]]) for name in terms.PAGES}
    return case.with_arrays(**pages, block_tables=numbers[case.arrays["block_tables"]])


@law(every=5)
def the_numbering_of_pages_does_not_matter(trial: Trial) -> Judgement:
    """With its pages elsewhere in the pool, and the tables pointing there, every sequence gets what it got.

    Allowed: the bounds of both calls, since a kernel may go through the pages in the order of the pool.
    """
    other = trial.on(_renumbered(trial.case))
    return fits(trial, widened(other), other.allowed, other) if trial.answer and other.answer else NOTHING


@law(every=5)
def the_size_of_blocks_does_not_matter(trial: Trial) -> Judgement:
    """The same tokens in pages of another size, one page a sequence among them, which is contiguous attention.

    Allowed: the bounds of both calls.
    """
    case = trial.case
    if terms.is_empty(case):
        return NOTHING
    sizes = [n for n in (1, 2, 7, 16, int(case.arrays["kv_lengths"].max())) if n != case.arrays["k_pages"].shape[1]]
    other = trial.on(terms.repaged(case, block_size=sizes[int(case.hash, 16) % len(sizes)]))
    return fits(trial, widened(other), other.allowed, other) if trial.answer and other.answer else NOTHING


def _sharing(case: Case) -> Case | None:
    blocks = case.arrays["block_tables"]
    named = blocks[blocks >= 0]
    return case if not terms.is_empty(case) and len(np.unique(named)) < named.size else None


@law(prepare=_sharing, every=2)
def shared_pages_are_like_copies(trial: Trial) -> Judgement:
    """Sequences that share the pages of a prefix get what they get with copies of their own. Allowed: the bounds of both calls."""
    other = trial.on(terms.repaged(trial.case))
    return fits(trial, widened(other), other.allowed, other) if trial.answer and other.answer else NOTHING


def _nothing_moves(trial: Trial, changed: Case | None) -> Judgement:
    """That the answer to a changed case is what the oracle says of this one, within its bound."""
    if changed is None:
        return NOTHING
    other = trial.on(changed)
    return pinned(within(other.answer, trial.wanted, trial.allowed), trial, other) if other.answer else NOTHING


def _nan_in_unused_slots(case: Case) -> Case | None:
    unused = ~terms.used(case)[..., None, None]
    if not unused.any() or case.arrays["q"].size == 0:
        return None
    return case.with_arrays(**{name: np.where(unused, np.nan, case.arrays[name].astype(np.float64)).astype(case.arrays[name].dtype)
                               for name in terms.PAGES})  # fmt: skip


def _spreads(declaration: Declaration) -> str:
    spread = declaration.conventions.get("nonfinite_behind_mask") == "spread"
    return "the subject declares nonfinite_behind_mask = spread" if spread else ""


@law(every=2, not_covered=_spreads)
def what_stands_in_unused_slots_does_not_matter(trial: Trial) -> Judgement:
    """NaN in slots behind a sequence's length and in pages of nobody, as a freed request leaves it: nothing changes.

    Allowed: the bound, which does not look there either.
    """
    return _nothing_moves(trial, _nan_in_unused_slots(trial.case))


def _wild_tail(case: Case) -> Case | None:
    """A table a column longer, whose entries behind each length are pages of the pool instead of -1."""
    if case.arrays["q"].size == 0:
        return None
    tables, S, N = case.arrays["block_tables"], case.arrays["k_pages"].shape[1], case.arrays["k_pages"].shape[0]
    wild = np.random.default_rng(int(case.hash, 16)).integers(0, N, (len(tables), tables.shape[1] + 1))
    behind = np.arange(wild.shape[1]) >= -(-case.arrays["kv_lengths"] // S)[:, None]
    longer = np.concatenate([tables, np.full((len(tables), 1), -1, tables.dtype)], axis=1)
    return case.with_arrays(block_tables=np.where(behind, wild, longer))


@law(every=2)
def entries_behind_the_length_do_not_matter(trial: Trial) -> Judgement:
    """Table entries behind a sequence's last block, left over from another, are never followed. Allowed: the bound."""
    return _nothing_moves(trial, _wild_tail(trial.case))


def _nan_where_nobody_looks(case: Case) -> Case | None:
    """NaN in every slot that no query sees: hidden by causality or a window, too."""
    N, S, Hkv, _ = case.arrays["k_pages"].shape
    seen, at = np.zeros((N * S, Hkv), dtype=bool), terms.slots(case)
    for b, _, flags in terms.visible(case):
        heads = np.asarray(np.any(flags, axis=1))                                             # (Hq, n_k)
        seen[at[b]] |= heads.reshape(Hkv, len(heads) // Hkv, heads.shape[-1]).any(axis=1).T
    hidden = ~seen.reshape(N, S, Hkv, 1)
    if not hidden.any() or case.arrays["q"].size == 0:
        return None
    return case.with_arrays(**{name: np.where(hidden, np.nan, case.arrays[name].astype(np.float64)).astype(case.arrays[name].dtype)
                               for name in terms.PAGES})  # fmt: skip


@law(every=2, not_covered=does_not_ignore)
def nan_behind_the_mask_is_ignored(trial: Trial) -> Judgement:
    """NaN in keys and values that no query may see changes nothing, between tokens that are seen too. Only for those who declare it.

    Allowed: the bound.
    """
    return _nothing_moves(trial, _nan_where_nobody_looks(trial.case))


def _causal(case: Case) -> Case | None:
    several = case.arrays["q"].shape[2] > 1 and not terms.is_empty(case)
    return case if several and case.options.get("causal") == "bottom_right" else None


def _of_rows(case: Case, start: int, stop: int) -> Case:
    """Queries start to stop alone, when the keys of later ones are not yet written."""
    n_q = terms.query_lengths(case)
    asked = np.clip(n_q, start, stop) - start
    later = np.maximum(n_q - stop, 0)
    arrays = {"q": case.arrays["q"][:, :, start:stop], "kv_lengths": np.maximum(case.arrays["kv_lengths"] - later, 0)}
    return case.with_arrays(**arrays, **({"query_lengths": asked} if "query_lengths" in case.arrays else {}))


def _answered(trial: Trial, part: Case) -> bool:
    """Whether a part lies in what the subject covers: some take no sequence without keys."""
    return trial.subject.declaration.coverage.empty or bool(part.arrays["kv_lengths"].all())


def _judged_together(trial: Trial, parts: dict[tuple[int, int], Case]) -> Judgement:
    """Rows of the whole call against the same rows asked in parts."""
    runs = {rows: trial.on(part) for rows, part in parts.items() if _answered(trial, part)}
    if not trial.answer or not runs or not all(run.answer for run in runs.values()):
        return NOTHING
    wanted = {name: np.zeros(trial.wanted[name].shape) for name in trial.answer}
    allowed = {name: np.full(trial.wanted[name].shape, np.inf) for name in trial.answer}
    for (start, stop), run in runs.items():
        for name, value in widened(run).items():
            wanted[name][:, :, start:stop], allowed[name][:, :, start:stop] = value, run.allowed[name]
    return fits(trial, wanted, allowed, *runs.values())


@law(prepare=_causal, every=2)
def each_step_of_decoding_is_its_row(trial: Trial) -> Judgement:
    """A query asked alone, before the tokens behind it are written, gets its row of the whole prompt: up to four of the rows.

    Causal, bottom right: query i stands at i + n_k - n_q, and so it does with n_k less by the tokens that follow it.
    Allowed: the bounds of both calls.
    """
    Lq = trial.case.arrays["q"].shape[2]
    rows = sorted({0, Lq - 1, Lq // 2, int(trial.case.hash, 16) % Lq})
    return _judged_together(trial, {(i, i + 1): _of_rows(trial.case, i, i + 1) for i in rows})


@law(prepare=_causal, every=2)
def a_prompt_in_chunks_is_the_whole_prompt(trial: Trial) -> Judgement:
    """Chunked prefill: the first queries before the others' tokens are written, then the rest: what one call gives.

    Causal, bottom right. Allowed: the bounds of both calls.
    """
    Lq = trial.case.arrays["q"].shape[2]
    cut = 1 + int(trial.case.hash, 16) % (Lq - 1)
    return _judged_together(trial, {(0, cut): _of_rows(trial.case, 0, cut), (cut, Lq): _of_rows(trial.case, cut, Lq)})


_PER_SEQUENCE = ("q", "block_tables", "kv_lengths", "query_lengths")


@law(every=5)
def a_sequence_alone_is_the_same(trial: Trial) -> Judgement:
    """The sequences of a batch, asked one by one over the same pool, get what they get together. Allowed: the bounds of both calls."""
    case = trial.case
    B = case.arrays["q"].shape[0]
    if B < 2 or terms.is_empty(case):
        return NOTHING
    alone = [trial.on(case.with_arrays(**{name: case.arrays[name][b : b + 1] for name in _PER_SEQUENCE if name in case.arrays}))
             for b in range(B)]  # fmt: skip
    if not trial.answer or not all(part.answer for part in alone):
        return NOTHING
    wanted = {name: np.concatenate([widened(part)[name] for part in alone]) for name in trial.answer}
    return fits(trial, wanted, {name: np.concatenate([part.allowed[name] for part in alone]) for name in wanted}, *alone)


def _grouped(case: Case) -> Case | None:
    return case if case.arrays["q"].shape[1] != case.arrays["k_pages"].shape[2] and not terms.is_empty(case) else None


@law(prepare=_grouped, every=3)
def grouped_heads_are_repeated_heads(trial: Trial) -> Judgement:
    """Pages of Hkv heads are pages of Hq heads, each repeated Hq / Hkv times: one head is multi-query, Hq are multi-head attention.

    Allowed: the bounds of both calls.
    """
    case = trial.case
    G = case.arrays["q"].shape[1] // case.arrays["k_pages"].shape[2]
    other = trial.on(case.with_arrays(**{name: np.repeat(case.arrays[name], G, axis=2) for name in terms.PAGES}))
    return fits(trial, widened(other), other.allowed, other) if trial.answer and other.answer else NOTHING


@law(every=8, minimise=False, not_covered=promised("validates_input", "to refuse bad input"))
def bad_tables_are_refused(trial: Trial) -> Judgement:
    """Pages that do not exist, a -1 before the length, lengths beyond the table or below 0, more queries than there are, heads that do
    not divide, values of another number of pages: an exception each.
    """
    case = trial.case
    if terms.is_empty(case):
        return NOTHING
    tables, n_k, q = (case.arrays[name] for name in ("block_tables", "kv_lengths", "q"))
    (N, S, _, _), longest = case.arrays["k_pages"].shape, int(n_k.argmax())
    far, torn = tables.copy(), tables.copy()
    far[longest, 0], torn[longest, 0] = N, -1
    bad: dict[str, dict[str, np.ndarray]] = {
        "a page that does not exist": {"block_tables": far},
        "-1 before the length": {"block_tables": torn},
        "lengths beyond the table": {"kv_lengths": np.full_like(n_k, tables.shape[1] * S + 1)},
        "lengths below 0": {"kv_lengths": np.full_like(n_k, -1)},
        "tables of another batch": {"block_tables": np.concatenate([tables, tables[:1]])},
        "heads that do not divide": {name: np.concatenate([case.arrays[name]] * (q.shape[1] + 1), axis=2) for name in terms.PAGES},
        "values of another number of pages": {"v_pages": np.concatenate([case.arrays["v_pages"]] * 2)},
    }
    if "query_lengths" in trial.subject.declaration.coverage.arguments:
        bad["more queries than there are"] = {"query_lengths": np.full_like(n_k, q.shape[2] + 1)}
    for what, arrays in bad.items():
        kind = trial.subject.run(case.with_arrays(**arrays), {}).kind
        if kind != RAISED:
            return Judgement(compared=1, worst_ratio=np.inf, failed=True, reason=f"{what}: {kind}; want an exception")
    return Judgement(compared=len(bad))


PAGED_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    agreement("lse"),
    queries_without_keys_are_empty,
    what_stands_in_unused_slots_does_not_matter,
    entries_behind_the_length_do_not_matter,
    _through_pages(one_hot_values_show_the_weights, every=3),
    equal_scores_average_exactly,
    _through_pages(the_first_forbidden_key_stays_forbidden, every=2),
    _through_pages(each_row_sees_its_number_of_keys, every=2),
    _through_pages(heads_read_their_own_keys, every=3),
    _through_pages(four_times_q_and_a_quarter_of_the_scale_change_no_bit, every=3),
    the_numbering_of_pages_does_not_matter,
    the_size_of_blocks_does_not_matter,
    shared_pages_are_like_copies,
    each_step_of_decoding_is_its_row,
    a_prompt_in_chunks_is_the_whole_prompt,
    a_sequence_alone_is_the_same,
    grouped_heads_are_repeated_heads,
    strides_are_respected,
    inputs_stay_untouched,
    buffers_are_fully_written,
    nan_behind_the_mask_is_ignored,
    repeats_give_the_same_bits,
    bad_tables_are_refused,
)
