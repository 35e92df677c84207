"""Laws of costs: what must not matter to a count, and counts that are known without a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import Case
from ..law import Judgement, Law, law, within
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    repeats_give_the_same_bits,
    strides_are_respected,
)


def _config(case: Case) -> Mapping[str, Any]:
    config = case.options["config"]
    assert isinstance(config, Mapping)
    return config


def _with_config(case: Case, **changed: Any) -> Case:
    return case.with_options(config={**_config(case), **changed})


# Bytes of a cache --------------------------------------------------------------------------------------------------------


def _twice_the_queries(case: Case) -> Case | None:
    """Heads and head size are named, so that no default of the contract moves with the query heads."""
    config = _config(case)
    if "num_key_value_heads" not in config or "head_dim" not in config:
        return None
    return _with_config(case, num_attention_heads=2 * config["num_attention_heads"])


@law(prepare=_twice_the_queries)
def query_heads_keep_nothing(trial: Trial) -> Judgement:
    """Twice the query heads on the same key and value heads, of the same size, keep as many bytes. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _twice_the_width(case: Case) -> Case | None:
    config = _config(case)
    return _with_config(case, hidden_size=2 * config["hidden_size"]) if "head_dim" in config else None


@law(prepare=_twice_the_width)
def a_named_head_size_is_taken(trial: Trial) -> Judgement:
    """Where the head size is named, the width of the model does not matter to its cache. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _past_the_window(case: Case) -> Case | None:
    config = _config(case)
    if "sliding_window" not in config or "sliding_window_pattern" in config:
        return None
    lengths = case.arrays["lengths"]
    return case.with_arrays(lengths=np.maximum(lengths, config["sliding_window"]) + 1)


@law(prepare=_past_the_window)
def a_full_window_grows_no_more(trial: Trial) -> Judgement:
    """Where all layers are windowed, any sequence longer than the window keeps as much as one of the window. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


# Training memory ---------------------------------------------------------------------------------------------------------


def _alone(case: Case) -> Case:
    return case.with_options(world=1)


@law(prepare=_alone)
def one_device_holds_everything(trial: Trial) -> Judgement:
    """On one device every stage holds all bytes of every parameter. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _weights_alone(case: Case) -> Case | None:
    stage = case.options["stage"]
    assert isinstance(stage, int)
    layout = ("gradient_bytes", "optimizer_bytes")
    return None if stage == 3 or not set(layout) <= set(case.options) else case.with_options(**dict.fromkeys(layout, 0))


@law(prepare=_weights_alone)
def weights_are_whole_below_stage_three(trial: Trial) -> Judgement:
    """At stages 0, 1 and 2 every device holds all weights, whatever else it shares out. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


# FLOPs -------------------------------------------------------------------------------------------------------------------


def _one_token_each(case: Case) -> Case:
    return case.with_arrays(lengths=np.ones_like(case.arrays["lengths"]))


@law(prepare=_one_token_each)
def one_token_is_seen_by_itself(trial: Trial) -> Judgement:
    """A sequence of one token has one pair of a query and a key, causal or not. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _larger_table(case: Case) -> Case | None:
    """Positions that are learned are looked up in the same way, and come with their family alone."""
    config = _config(case)
    return None if config.get("tie_word_embeddings") else _with_config(case, vocab_size=3 * config["vocab_size"] + 1)


@law(prepare=_larger_table)
def an_untied_table_is_only_looked_up(trial: Trial) -> Judgement:
    """A larger vocabulary costs the rows of the head; the table of the input, a matrix of its own, costs none. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


# Accuracy ----------------------------------------------------------------------------------------------------------------


def _perfect(case: Case) -> Case | None:
    logits, tokens = case.arrays["logits"], case.arrays["tokens"]
    if 0 in logits.shape or logits.shape[2] == 1:
        return None
    following = np.roll(tokens, -1, axis=1)
    ids = np.where(following >= 0, following, 0)
    sharp = np.zeros(logits.shape, logits.dtype)
    np.put_along_axis(sharp, ids[..., None], np.ones((), logits.dtype), axis=2)
    return case.with_arrays(logits=sharp)


@law(prepare=_perfect)
def perfect_predictions_are_all_right(trial: Trial) -> Judgement:
    """Where each position puts its largest logit on the token that comes next, all that count are right. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _all_ignored(case: Case) -> Case:
    ignored = case.options.get("ignore_index", -100)
    assert isinstance(ignored, int)
    return case.with_arrays(tokens=np.full_like(case.arrays["tokens"], ignored))


@law(prepare=_all_ignored)
def nothing_ignored_counts(trial: Trial) -> Judgement:
    """Where every target is ignored, none is right and none is counted. Allowed: 0."""
    return within(trial.answer, trial.wanted, trial.allowed)


_LAST = (inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits)
KV_BYTES_LAWS: tuple[Law, ...] = (
    answers, replace(agreement("bytes"), minimise=False), query_heads_keep_nothing, a_named_head_size_is_taken,
    a_full_window_grows_no_more, *_LAST,
)  # fmt: skip
TRAINING_BYTES_LAWS: tuple[Law, ...] = (
    answers, replace(agreement("bytes"), minimise=False), one_device_holds_everything, weights_are_whole_below_stage_three, *_LAST,
)  # fmt: skip
FLOPS_LAWS: tuple[Law, ...] = (
    answers, replace(agreement("flops"), minimise=False), one_token_is_seen_by_itself, an_untied_table_is_only_looked_up, *_LAST,
)  # fmt: skip
ACCURACY_LAWS: tuple[Law, ...] = (
    answers, replace(agreement("right"), minimise=False), replace(agreement("counted"), minimise=False), perfect_predictions_are_all_right,
    nothing_ignored_counts, strides_are_respected, *_LAST,
)  # fmt: skip
