"""Showing objects: the page of one stateful operation, from the code that decides it, so that it cannot go out of date."""

from __future__ import annotations

import inspect
from typing import Any

from oracles.properties.stateful.operation import StatefulOperation
from oracles.properties.stateful.operations import stateful_named


def page(name: str) -> str:
    """Methods, contract and laws of one stateful operation, as Markdown."""
    data = page_json(name)
    optional = "\n".join(f"- `{method}`" for method in data["optional"])
    arguments = "\n".join(f"- {_in_words(argument)}" for argument in data["arguments"])
    parts = [
        f"# {name}\n\n{data['summary']}",
        "```\n" + "\n    ".join(data["signatures"]) + "\n```",
        data["contract"],
        "## What a subject must have\n\n" + ", ".join(f"`{method}`" for method in data["required"]),
        "## What it may have\n\nWhat it lacks is not covered.\n\n" + "\n".join(filter(None, (optional, arguments))),
        "## Laws\n\n" + "\n\n".join(f"**{law['name']}** {law['statement']}" for law in data["laws"]),
        f"## Source\n\n{data['source']}.\n",
    ]
    return "\n\n".join(parts)


def page_json(name: str) -> dict[str, Any]:
    """The same as data."""
    operation = stateful_named(name)
    return {
        "operation": operation.name, "summary": operation.summary, "signatures": _signatures(operation),
        "contract": inspect.getdoc(operation.oracle) or "",
        "required": list(operation.required), "optional": list(operation.optional), "arguments": list(operation.arguments),
        "laws": [{"name": law.name, "statement": inspect.cleandoc(law.statement)} for law in operation.laws],
        "designed": list(operation.designed()), "source": operation.source,
    }  # fmt: skip


def _signatures(operation: StatefulOperation) -> list[str]:
    """How the oracle is made, its methods and the attributes that the contract names, without types, self and private ones."""
    oracle = operation.oracle

    def heading(name: str, function: Any) -> str:
        called = inspect.signature(function)
        plain = [p.replace(annotation=p.empty) for p in called.parameters.values() if p.name != "self"]
        return name + str(called.replace(parameters=plain, return_annotation=called.empty))

    members = vars(oracle) if inspect.isclass(oracle) else {}
    methods = {name: member for name, member in members.items() if inspect.isfunction(member)}
    listed = [*(name for name in operation.required if isinstance(members.get(name), property)),
              *(heading(name, method) for name, method in methods.items() if name == "__len__" or not name.startswith("_"))]  # fmt: skip
    return [heading(oracle.__name__, oracle), *listed]


def _in_words(argument: str) -> str:
    """new.lr is an argument of the constructor, step.tokens one of a method.

    >>> _in_words("new.lr"), _in_words("step.tokens")
    ('`lr=` of the constructor', '`tokens=` of `step`')
    """
    method, _, name = argument.partition(".")
    return f"`{name}=` of " + ("the constructor" if method == "new" else f"`{method}`")
