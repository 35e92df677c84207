"""Sequence counterexample: broken laws as a folder: the calls, a report, and a repro for the subject and NumPy alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from ..counterexample import REPORT, REPRO, carried_peer, lasting_name, quoted
from .operation import StatefulOperation
from .play import SequenceLaw
from .sequence import Call, Sequence, from_json, to_json
from .subjects import ObjectSubject, factory_named

SEQUENCE, JUDGE = "sequence.json", "judge"


def write_sequence(
    folder: Path, operation: StatefulOperation, subject: ObjectSubject, abilities: frozenset[str], law: SequenceLaw, calls: Sequence,
    wrong: str,
) -> Path:  # fmt: skip
    """Write `folder/<hash>-<law>/`, all or nothing, and return it. The hash is of the calls and the subject."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_json(list(calls)))
    spec = lasting_name(subject.spec, getattr(subject, "factory", None))
    target = folder / f"{hashlib.sha256(f'{text} {spec or subject.name}'.encode()).hexdigest()[:12]}-{law.name[:24].rstrip('_')}"
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".writing-"))
    about = {"operation": operation.name, "subject": subject.name, "spec": spec, "law": law.name,
             "statement": " ".join(law.statement.split()), "reason": wrong, "calls": [str(call) for call in calls]}  # fmt: skip
    try:
        data = {**about, "abilities": sorted(abilities), "sequence": to_json(list(calls))}
        (temporary / SEQUENCE).write_text(json.dumps(data, indent=1) + "\n")
        (temporary / REPORT).write_text(json.dumps(about, indent=1) + "\n")
        found = carried_peer(factory_named(spec, operation.name), temporary) if spec.startswith("peers:") else spec
        (temporary / REPRO).write_text(_repro(operation, {**about, "spec": found}, abilities, calls))
        (temporary / JUDGE).mkdir()
        (temporary / JUDGE / "__init__.py").write_text('"""Model and laws, copied from oracles.properties: they need NumPy alone."""\n')
        for name in operation.carried:
            _carry(name, temporary / JUDGE)
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _carry(name: str, folder: Path) -> None:
    """Copy a module of this package, or, named `reference.NAME`, of the oracles, beside which the others then look for it."""
    package, _, module = name.rpartition(".")
    source = resources.files(f"oracles.{package}" if package else __package__).joinpath(f"{module}.py").read_text()
    (folder / f"{module}.py").write_text(source.replace("from oracles.reference.", "from ."))


def _repro(operation: StatefulOperation, about: dict[str, Any], abilities: frozenset[str], calls: Sequence) -> str:
    listed = "\n".join(f"    {call}" for call in calls)
    settings = {"operation": operation.name, "law": about["law"], "model": operation.model_name, "laws": operation.laws_name,
                "walker": operation.walker_name, "abilities": sorted(abilities), "calls": to_json(list(calls))}  # fmt: skip
    template = resources.files(__package__).joinpath("repro_template.txt").read_text()
    title = quoted(f"{about['subject']} breaks {about['law']} of {operation.name}: {about['reason']}")
    return (template.replace("@ABOUT@", title).replace("@STATEMENT@", quoted(about["statement"])).replace("@CALLS@", quoted(listed))
            .replace("@SUBJECT@", repr(about["spec"])).replace("@SETTINGS@", repr(json.dumps(settings))))  # fmt: skip


def read_sequence(folder: Path) -> tuple[dict[str, Any], tuple[Call, ...], frozenset[str]]:
    """What `write_sequence` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    data: dict[str, Any] = json.loads((folder / SEQUENCE).read_text())
    return data, tuple(from_json(data["sequence"])), frozenset(data["abilities"])
