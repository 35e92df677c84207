"""Showing objects: the page of one stateful operation, from the code that decides it, so that it cannot go out of date."""

from __future__ import annotations

import inspect
from typing import Any

from oracles.properties.stateful.operations import stateful_named


def page(name: str) -> str:
    """Methods, contract and laws of one stateful operation, as Markdown."""
    data = page_json(name)
    optional = "\n".join(f"- `{method}`" for method in data["optional"])
    arguments = "\n".join(f"- `{argument}`" for argument in data["arguments"])
    parts = [
        f"# {name}\n\n{data['summary']}",
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
        "operation": operation.name, "summary": operation.summary, "contract": inspect.getdoc(operation.oracle) or "",
        "required": list(operation.required), "optional": list(operation.optional), "arguments": list(operation.arguments),
        "laws": [{"name": law.name, "statement": inspect.cleandoc(law.statement)} for law in operation.laws],
        "designed": list(operation.designed()), "source": operation.source,
    }  # fmt: skip
