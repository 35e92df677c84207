"""Showing: the page of one operation, from the code that decides it, so that it cannot go out of date."""

from __future__ import annotations

import inspect
from typing import Any

from oracles.properties import bounds
from oracles.properties.conventions import CONVENTIONS
from oracles.properties.differences import DIFFERENCES
from oracles.properties.operations import operation_named

_DECLARED = 'As `@subject("{}", conventions={{"{}": "{}"}})`; the first value of each is the oracles\' own.'


def page(name: str) -> str:
    """Signature, contract, bound, laws, conventions and differences of one operation, as Markdown."""
    data = page_json(name)
    conventions = {f"{c['name']} ({', '.join(c['values'])})": c["meaning"] for c in data["conventions"]}
    declared = [_DECLARED.format(name, c["name"], c["values"][1]) for c in data["conventions"][:1]]
    parts = [
        f"# {name}\n\n{data['summary']}",
        f"```\n{data['signature']}\n    -> {', '.join(data['results'])}\n```",
        data["contract"],
        f"## Bound\n\n{data['bound']}",
        "## Laws\n\n" + "\n\n".join(f"**{law['name']}** {law['statement']}" for law in data["laws"]),
        "## Conventions a subject may declare\n\n" + (f"{declared[0]}\n\n{_listed(conventions)}" if conventions else ""),
        "## How libraries differ\n\n" + _listed({d["point"]: d["answers"] for d in data["differences"]}),
        f"## Source\n\n{data['source']}.\n",
    ]
    return "\n\n".join(part for part in parts if not part.endswith("\n\n"))


def _listed(entries: dict[str, str]) -> str:
    return "\n".join(f"- **{name}**: {text}" for name, text in entries.items())


def page_json(name: str) -> dict[str, Any]:
    """The same as data."""
    operation = operation_named(name)
    return {
        "operation": operation.name,
        "summary": operation.summary,
        "signature": _signature(operation.name, operation.oracle),
        "results": list(operation.signature.results),
        "contract": inspect.getdoc(operation.oracle) or "",
        "bound": inspect.getdoc(getattr(bounds, f"{name}_bound")) or "",
        "laws": [{"name": law.name, "statement": inspect.cleandoc(law.statement)} for law in operation.laws],
        "conventions": [{"name": n, "values": list(c.values), "meaning": c.meaning} for n, c in CONVENTIONS.items()
                        if name in c.operations],
        "differences": [{"point": point, "answers": answers} for point, answers in DIFFERENCES.get(name, ())],
        "source": operation.source,
    }


def _signature(name: str, oracle: Any) -> str:
    """The oracle's signature without its annotations: names and defaults are the contract."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(oracle).parameters.values()]
    return f"{name}{inspect.Signature(parameters)}"
