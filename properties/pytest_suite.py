"""Suite: a subject's laws as pytest tests, one a law, from one run of the checker."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .operations import operation_named
from .report import HELD, NOT_COVERED, Report, Verdict
from .stateful.names import STATEFUL_NAMES


def suite(operation: str, subject: str | Callable[..., Any], **options: Any) -> Callable[[str], None]:
    """A parametrized test function: one test a law. Write `test_attention = suite("attention", my_attention)` in a test file.

    subject is what `check` takes: for an object such as "block_allocator" a class or factory. options are those of `check`. The
    checker runs once, when the first of the tests does. A law that is not covered is a skip that says why; a broken law fails with
    the place, the case, and where the counterexample lies.
    """
    import pytest

    @cache
    def report() -> Report:
        from .checker import check

        return check(operation, subject, **{"failures": "failures", **options})

    @pytest.mark.parametrize("law", law_names(operation))
    def test(law: str) -> None:
        conclude(next(verdict for verdict in report().verdicts if verdict.law == law))

    return test


def law_names(operation: str) -> list[str]:
    """The laws of an operation, function or object. Raises UsageError listing the operations there are."""
    if operation in STATEFUL_NAMES:
        from .stateful.operations import stateful_named

        return [law.name for law in stateful_named(operation).laws]
    return [law.name for law in operation_named(operation).laws]


def conclude(verdict: Verdict) -> None:
    """Pass, skip or fail the running test as the verdict says."""
    import pytest

    if verdict.status == NOT_COVERED:
        pytest.skip(f"not covered: {verdict.reason}")
    if verdict.status != HELD:
        pytest.fail(explanation(verdict), pytrace=False)


def explanation(verdict: Verdict) -> str:
    """A broken verdict in a few lines."""
    lines = [f"{verdict.law}: {verdict.status}", verdict.reason]
    if verdict.hint:
        lines.append(f"looks like {verdict.hint}")
    if verdict.case:
        lines.append(f"case: {verdict.case}")
    if verdict.counterexample:
        lines.append(f"again: python {verdict.counterexample}/repro.py, or oracles replay {verdict.counterexample}")
    return "\n".join(lines)
