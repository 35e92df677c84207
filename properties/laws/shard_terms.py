"""Terms: what the laws of sequences over ranks ask of a case, and how they change one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from oracles.reference import FloatFormat, shard_positions
from oracles.reference.sequence_shards import gathered_sequence, scattered_sequence

from ..array_lists import spread, whole_name
from ..case import Case
from ..law import NOTHING, Evidence, Judgement, Law, within
from ..safetensors_file import Array
from ..trial import Trial

LISTS = ("q_shards", "k_shards", "v_shards", "dout_shards")


def list_agreement(result: str) -> Law:
    """The law that every array of a list of results agrees with the oracle's, and none is missing."""

    def judge(trial: Trial) -> Judgement:
        wanted = of_list(trial.wanted, result)
        if not trial.answer or not of_list(trial.answer, result):
            return NOTHING if not trial.answer else Judgement(reason=f"the subject returns no {result}")
        missing = [name for name in wanted if name not in trial.answer]
        if missing:
            return Judgement(1, worst_ratio=np.inf, failed=True, reason=f"{', '.join(missing)}: not returned")
        return within(trial.answer, wanted, trial.allowed)

    statement = f"|{result} - oracle's {result}| <= bound(subject's arithmetic) + bound(oracle's arithmetic), in every array of the list."
    return Law(f"{result}_agrees_with_the_oracle", statement, judge, lambda case: case, lambda declaration: "")


def of_list(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Those of the arrays that belong to one list."""
    return {key: value for key, value in values.items() if whole_name(key) == name}


def ranks(case: Case) -> int:
    """How many ranks there are."""
    return len(of_list(case.arrays, "q_shards"))


def order_of(case: Case) -> Any:
    return case.options.get("order", "contiguous")


def positions(case: Case) -> list[Array]:
    """The places of each rank's tokens."""
    return list(shard_positions(ranks(case), case.arrays["q_shards.0"].shape[2], order=order_of(case)))


def whole(case: Case, name: str) -> Array:
    """One argument as the whole sequence."""
    return gathered_sequence(list(of_list(case.arrays, name).values()), positions(case))


def segments(case: Case) -> Array:
    """The segment of each token, (B, L)."""
    q = case.arrays["q_shards.0"]
    return case.arrays.get("segments", np.zeros((q.shape[0], ranks(case) * q.shape[2]), dtype=np.int64))


def with_sequences(case: Case, **sequences: Array) -> Case:
    """The case with arguments exchanged that are given as whole sequences, in its own ranks and order."""
    parts = {name: scattered_sequence(x, positions(case)) for name, x in sequences.items()}
    return case.with_arrays(**{key: part for name, shards in parts.items() for key, part in spread(name, shards).items()})


def on_ranks(case: Case, R: int) -> Case:
    """The same sequence over another number of ranks."""
    names = [name for name in LISTS if of_list(case.arrays, name)]
    sequences = {name: whole(case, name) for name in names}
    others = {name: x for name, x in case.arrays.items() if whole_name(name) not in names}
    places = shard_positions(R, next(iter(sequences.values())).shape[2] // R, order=order_of(case))
    parts = [spread(name, [np.ascontiguousarray(p) for p in scattered_sequence(x, places)]) for name, x in sequences.items()]
    return Case(case.operation, {**{k: v for one in parts for k, v in one.items()}, **others}, case.options, case.origin, case.notes)


def gathered_results(case: Case, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Array]:
    """The results of these names as whole sequences, in float64; those that are not there are left out."""
    lists = {name: [np.asarray(x, np.float64) for x in of_list(values, name).values()] for name in names}
    return {name: gathered_sequence(shards, positions(case)) for name, shards in lists.items() if shards}


def within_sequence(trial: Trial, got: Mapping[str, Array], wanted: Mapping[str, Array], allowed: Mapping[str, Array]) -> Judgement:
    """`within` of whole sequences; the evidence, which a repro holds against the results of a call, is cut into the ranks' shards."""
    def in_shards(values: Mapping[str, Array]) -> dict[str, Array]:
        shards = {name: spread(name, scattered_sequence(values[name], positions(trial.case))) for name in wanted}
        return {key: part for parts in shards.values() for key, part in parts.items()}

    return replace(within(got, wanted, allowed), evidence=Evidence(in_shards(wanted), in_shards(allowed)))


def is_empty(case: Case) -> bool:
    """Whether there is no token to speak of."""
    return case.arrays["q_shards.0"].size == 0


def like(array: Array, values: Array) -> Array:
    """Values in the format of an array, rounded once."""
    return np.ascontiguousarray(FloatFormat(array.dtype.name).cast(values, overflow="saturate"))
