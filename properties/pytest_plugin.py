"""Pytest plugin: `pytest --oracles-subject my_kernels.py:attention` adds one test per law of the operation."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .report import Report, Verdict


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oracles", "hold kernels to the laws of their operations")
    group.addoption("--oracles-subject", action="append", default=[], metavar="SUBJECT",
                    help="a subject, as in `oracles check`: file.py:function, module:class, peers:name, cmd:PROGRAM; repeatable")
    group.addoption("--oracles-operation", default=None, metavar="OPERATION",
                    help="its operation, where it neither declares one nor bears the name of one")
    group.addoption("--oracles-budget", default="default", metavar="BUDGET", help="random cases: a number, quick, default or full")
    group.addoption("--oracles-seed", default=0, type=int, metavar="SEED", help="seed of the random cases")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for spec in config.getoption("--oracles-subject"):
        from .declaration import UsageError
        from .pytest_suite import law_names

        try:
            operation = config.getoption("--oracles-operation") or _operation_of(spec)
            laws = law_names(operation)
        except UsageError as error:
            raise pytest.UsageError(f"--oracles-subject {spec}: {error}; name it with --oracles-operation") from None
        run = _Run(operation, spec, config)
        items.extend(_LawItem.from_parent(session, name=f"{spec}[{law}]", run=run, law=law) for law in laws)


def _operation_of(spec: str) -> str:
    """The operation whose name a subject bears, or which it declares."""
    from .signatures import SIGNATURES
    from .stateful.names import STATEFUL_NAMES
    from .subjects import open_subject

    name = spec.rpartition(":")[2]
    if name in (*SIGNATURES, *STATEFUL_NAMES):
        return name
    opened = open_subject(spec, None)
    opened.close()
    return opened.declaration.operation


class _Run:
    """One run of the checker, shared by the tests of one subject."""

    def __init__(self, operation: str, spec: str, config: pytest.Config) -> None:
        self._operation, self._spec, self._config = operation, spec, config

    @cached_property
    def _found(self) -> Report | ValueError:
        """The report, or why there is none: also that is found out once, not once a law."""
        from .checker import check
        from .declaration import UsageError

        budget, seed = self._config.getoption("--oracles-budget"), self._config.getoption("--oracles-seed")
        try:
            return check(self._operation, self._spec, budget=budget, seed=seed, failures="failures")
        except UsageError as error:
            return error

    @property
    def report(self) -> Report:
        if isinstance(self._found, ValueError):
            raise self._found
        return self._found

    def verdict(self, law: str) -> Verdict:
        return next(verdict for verdict in self.report.verdicts if verdict.law == law)


class _LawItem(pytest.Item):
    """One law of one subject."""

    def __init__(self, *, run: _Run, law: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._run, self._law = run, law

    def runtest(self) -> None:
        from .pytest_suite import conclude

        conclude(self._run.verdict(self._law))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, pytest.fail.Exception | ValueError) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[str, None, str]:
        return self.name, None, self.name
