"""Every example in the oracles' docstrings runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import oracles.reference

MODULES = sorted(module.name for module in pkgutil.iter_modules(oracles.reference.__path__))
WITHOUT_EXAMPLES = {"arguments"}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_print_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"oracles.reference.{name}"), extraglobs={"np": np})
    assert result.failed == 0


@pytest.mark.parametrize("name", sorted(set(MODULES) - WITHOUT_EXAMPLES))
def test_there_are_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"oracles.reference.{name}"), extraglobs={"np": np}).attempted > 0
