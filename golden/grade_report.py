"""Grade report: grades as JUnit XML, as Markdown for people, and as one line a submission for a class list."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from xml.etree import ElementTree

from .grade import Criterion, Grade

FORMULA = ("=", "+", "-", "@")                                                  # what a spreadsheet would compute


def lost(grade: Grade) -> list[Criterion]:
    """The cases that cost points, and are there: where all cases of an operation are missing, one line stands for them."""
    there = {c.operation for c in grade.criteria if c.max_points and not c.missing}
    empty = [name for name, (_, most) in grade.operations().items() if most and name not in there]
    together = []
    for name in empty:
        mine = [criterion for criterion in grade.criteria if criterion.operation == name]
        together.append(Criterion(f"{name}/*", 0, sum(c.max_points for c in mine), f"missing: all {len(mine)} cases"))
    rest = [c for c in grade.criteria if c.points < c.max_points and c.operation not in empty]
    return together + rest


def csv_of(grades: Sequence[Grade]) -> str:
    """One line a submission: score, max_score, what is missing, the points of each operation, the flags."""
    operations = list(grades[0].operations()) if grades else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["submission", "score", "max_score", "missing", *operations, "flags"])
    for grade in grades:
        points = [grade.operations()[name][0] for name in operations]
        missing = sum(criterion.missing for criterion in grade.criteria)
        writer.writerow([_cell(grade.submission), grade.score, grade.max_score, missing, *points, _cell("; ".join(grade.flags))])
    return out.getvalue()


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


def markdown_of(grades: Sequence[Grade]) -> str:
    """A table of scores, then for each submission its points by operation, where points were lost, and its flags."""
    lines = ["# Grades", "", "| submission | score | of | missing | flags |", "|---|---:|---:|---:|---:|"]
    for grade in grades:
        missing = sum(criterion.missing for criterion in grade.criteria)
        lines.append(f"| {_escaped(grade.submission)} | {grade.score} | {grade.max_score} | {missing} | {len(grade.flags)} |")
    for grade in grades:
        lines += ["", f"## {_escaped(grade.submission)}", "", f"{grade.score} of {grade.max_score} points."]
        lines += ["", "| operation | points | of |", "|---|---:|---:|"]
        lines += [f"| {name} | {points} | {most} |" for name, (points, most) in grade.operations().items()]
        for title, told in (("Flags", grade.flags), ("Lost", [f"{c.name}: {c.points} of {c.max_points}: {c.reason}" for c in lost(grade)])):
            lines += ["", f"{title}:", "", *(f"- {_escaped(text)}" for text in told)] if told else []
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A stranger's text as text: nothing in it is markup, a link or a table's border."""
    for sign in "\\`*_{}[]<>()#!|&~":
        text = text.replace(sign, f"\\{sign}")
    return text


def junit_of(grades: Sequence[Grade]) -> str:
    """JUnit XML: one suite a submission, one test a case; a lost point is a failure, a case that cannot be judged is skipped."""
    root = ElementTree.Element("testsuites")
    for grade in grades:
        failed = [criterion for criterion in grade.criteria if criterion.points < criterion.max_points]
        unjudged = sum(criterion.max_points == 0 for criterion in grade.criteria)
        suite = ElementTree.SubElement(root, "testsuite", name=grade.submission, tests=str(len(grade.criteria)),
                                       failures=str(len(failed)), skipped=str(unjudged))  # fmt: skip
        for criterion in grade.criteria:
            test = ElementTree.SubElement(suite, "testcase", classname=f"{grade.submission}.{criterion.operation}", name=criterion.name)
            if criterion.points < criterion.max_points or criterion.max_points == 0:
                tag = "failure" if criterion.max_points else "skipped"
                ElementTree.SubElement(test, tag, message=f"{criterion.points} of {criterion.max_points}: {criterion.reason}")
        if grade.flags:
            ElementTree.SubElement(suite, "system-out").text = "\n".join(grade.flags)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
