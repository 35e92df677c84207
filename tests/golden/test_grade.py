"""The judge: full marks for what is right, marks lost exactly where a fault is, and nothing gained by what is missing, broken or sly."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.golden import grade as judging
from oracles.golden.certified import Limbs
from oracles.golden.export import INDEX, export
from oracles.golden.grade import Grade, compared, grade
from oracles.golden.questions import questions
from oracles.golden.submission import LONGEST, MOST_SHOWN
from oracles.properties import safetensors_file
from oracles.properties.declaration import UsageError

from .submissions import answer, losses

PAGE = (Path(__file__).parent.parent.parent / "docs" / "grading.md").read_text()
PAIR = ("softmax", "merge_attention")
FILE = "answers/merge_attention/near.safetensors"                               # float32: two results
# What the defaults promise nothing for, whoever asks: four results of three cases have no point.
UNJUDGED = {"log_sum_exp/largest-numbers": 0, "merge_attention/huge": 0, "filter_probabilities/vocabulary": 0}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Right answers to all questions; not to be changed."""
    return answer(tmp_path_factory.mktemp("everything") / "student")


@pytest.fixture
def student(everything: Path, tmp_path: Path) -> Path:
    """Right answers about softmax and merge_attention, that may be spoilt."""
    for name in PAIR:
        shutil.copytree(everything / "answers" / name, tmp_path / "student" / "answers" / name)
    return tmp_path / "student"


def judged(folder: Path, **options: Any) -> Grade:
    (one,) = grade([folder], PAIR, **options)
    return one


def declares(folder: Path, **content: Any) -> None:
    (folder / "declaration.json").write_text(json.dumps(content))


def test_right_answers_have_full_marks_everywhere(everything: Path) -> None:
    (one,) = grade([everything])
    assert (one.full, losses(one), one.flags) == (True, {}, [])
    asked = list(questions())
    assert all(name in PAGE for name in UNJUDGED)
    assert {c.name: c.max_points for c in one.criteria} == {q.name: 1 if q.is_object else len(q.wanted) for q in asked} | UNJUDGED


def test_nothing_has_no_marks(tmp_path: Path) -> None:
    one = judged(tmp_path)
    assert (one.full, one.score, one.flags) == (False, 0, ["holds no answers/"])
    assert [criterion.name for criterion in one.criteria if not criterion.missing] == ["merge_attention/huge"]     # without a point


def zeros(everything: Path, folder: Path, operations: Sequence[str] = ()) -> Path:
    """Zeros in the right formats."""
    for question in questions(operations=operations):
        path = folder / "answers" / question.file
        path.parent.mkdir(parents=True, exist_ok=True)
        if not question.is_object:
            tensors, _ = safetensors_file.read(everything / "answers" / question.file)
            safetensors_file.write(path, {name: np.zeros_like(array) for name, array in tensors.items()})
    return folder


def test_zeros_earn_only_what_is_zero(everything: Path, tmp_path: Path) -> None:
    """Results that are zero, and those without an element. And what the page says.

    And softmax/largest-numbers, where the defaults promise something for its zeros alone, as the other differences overflow;
    mtp_loss/leading-targets, a loss of 2e-16 that float32 does not tell from zero; and cross_entropy/leading-targets, losses near 1e-17,
    of which lse - z_y keeps nothing in float64.
    """
    zero = sum(not limbs.hi.any() for question in questions() for limbs in question.wanted.values())
    (one,) = grade([zeros(everything, tmp_path)])
    assert one.score == zero + 3
    assert f"a folder of nothing but zeros in the right formats has {one.score} of {one.max_score} points" in PAGE


def test_flushed_subnormals_cost_what_the_page_says(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "flash.json").write_text('{"arithmetic": "flash_gpu"}')
    (one,) = grade([everything], declaration=tmp_path / "flash.json")
    assert set(losses(one)) == {"attention/subnormal-values", "attention_backward/subnormal-values"}
    assert f"are such: {one.max_score - one.score} of the {one.max_score}" in PAGE


# How a file is spoilt, what its reason must say, and the points it costs of 2. ---------------------------------------------


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        tensors, _ = safetensors_file.read(path)
        change(tensors)
        safetensors_file.write(path, tensors)

    return spoil


def element(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name].reshape(-1)[7] = value

    return change


def nothing_there(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def link_of_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.parent.parent / "elsewhere")
    path.parent.symlink_to(path.parent.parent.parent / "elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def deep(path: Path) -> None:
    header = b"[" * 50_000
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def huge(path: Path) -> None:
    with path.open("ab") as opened:
        opened.truncate(2**40)                                                  # sparse: takes no room, and must not be read


FAULTS: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "missing": (nothing_there, f"missing: no {FILE}", 2),
    "link": (link, f"link: {FILE} is a link", 2),
    "pipe": (pipe, "no file: ", 2),
    "folder": (folder, "no file: ", 2),
    "truncated": (truncated, "unreadable: ", 2),
    "empty": (lambda path: path.write_bytes(b"") and None, "unreadable: ", 2),
    "text": (lambda path: path.write_text("0.5 0.5") and None, "unreadable: ", 2),
    "deep header": (deep, "unreadable: ", 2),
    "huge": (huge, "too large: ", 2),
    "half of it": (changed(lambda t: t.pop("lse")), "lse: not in the file", 1),
    "wide": (changed(lambda t: t.update(out=t["out"].astype(np.float64))), "out: got dtype float64; want float32", 1),
    "integers": (changed(lambda t: t.update(lse=t["lse"].astype(np.int64))), "lse: got dtype int64; want float32", 1),
    "flat": (changed(lambda t: t.update(out=t["out"].reshape(-1))), "out: got shape (240,); want (2, 3, 5, 8)", 1),
    "transposed": (changed(lambda t: t.update(out=t["out"].swapaxes(1, 2))), "out: got shape (2, 5, 3, 8); want (2, 3, 5, 8)", 1),
    "nan": (changed(element("out", np.nan)), "out[0,0,0,7] is nan", 1),
    "infinite": (changed(element("lse", np.inf)), "lse[0,1,2] is inf", 1),
    "one element": (changed(lambda t: element("out", t["out"].reshape(-1)[7] * np.float32(1.001))(t)), "out[0,0,0,7] is ", 1),
    "exchanged": (changed(lambda t: t.update(out=-t["out"], lse=-t["lse"])), "; lse[", 2),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_own_points_and_is_named(fault: str, student: Path) -> None:
    spoil, says, costs = FAULTS[fault]
    spoil(student / FILE)
    one = judged(student)
    assert list(losses(one)) == ["merge_attention/near"]
    assert says in losses(one)["merge_attention/near"]
    assert one.max_score - one.score == costs


def test_a_link_of_a_folder_leads_nowhere(student: Path) -> None:
    link_of_the_folder(student / FILE)
    one = judged(student)
    assert len(losses(one)) == 11
    assert all(reason == "link: answers/merge_attention is a link; want a file" for reason in losses(one).values())


def test_answers_outside_the_folder_are_not_read(student: Path) -> None:
    (student / "answers").rename(student.parent / "elsewhere")
    (student / "answers").symlink_to(student.parent / "elsewhere")
    assert judged(student).score == 0


def test_a_file_without_rights_is_named(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*given: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("oracles.golden.submission.os.open", denied)            # whoever runs the tests may read everything
    assert set(losses(judged(student)).values()) >= {f"unreadable: {FILE}: Permission denied"}


# What may be off ----------------------------------------------------------------------------------------------------------


def test_both_limbs_count() -> None:
    limbs = Limbs(np.array([1.0]), np.array([2.0**-60]))
    assert compared("x", np.array([1.0]), limbs, np.array([2.0**-61])).failed
    assert not compared("x", np.array([1.0]), limbs, np.array([2.0**-60])).failed


@pytest.mark.parametrize(("wanted", "got"), [(-np.inf, np.inf), (-np.inf, -1e308), (0.0, np.nan), (-np.inf, np.nan), (1e308, -np.inf)])
def test_infinities_and_nan_are_wrong_where_they_are_not_wanted(wanted: float, got: float) -> None:
    limbs = Limbs(np.array([wanted]), np.zeros(1))
    assert compared("x", np.array([got]), limbs, np.array([1e300])).failed
    assert not compared("x", np.array([wanted]), limbs, np.zeros(1)).failed


@pytest.mark.parametrize(("share", "full"), [(0.9, True), (1.1, False)])
def test_the_bound_is_the_border(share: float, full: bool, everything: Path, tmp_path: Path) -> None:
    """float64 answers that are off by a share of what is allowed, in every element."""
    said, (question,) = judging.Declared(), [q for q in questions(operations=["softmax"]) if q.name == "softmax/near-zero"]
    measure, path = judging._measures(question, said)["p"], tmp_path / "answers" / question.file
    path.parent.mkdir(parents=True)
    safetensors_file.write(path, {"p": measure.right.hi + share * measure.allowed})
    (one,) = grade([tmp_path], ["softmax"])
    assert next(c.points for c in one.criteria if c.name == question.name) == int(full)


# What is declared ---------------------------------------------------------------------------------------------------------


def test_a_declared_format_is_wanted_then(student: Path) -> None:
    declares(student, arithmetic={"out": "float64", "lse": "float64"})
    assert len(losses(judged(student))) > 15
    for question in questions(operations=PAIR):
        safetensors_file.write(student / "answers" / question.file, {name: limbs.hi for name, limbs in question.wanted.items()})
    one = judged(student)
    assert one.full
    assert one.flags == ['declares the arithmetic {"out": "float64", "lse": "float64"}']


def test_a_declared_convention_is_right_then(tmp_path: Path) -> None:
    """Rows of nothing but -inf as NaN: right for who declares it, wrong for others; and the other way round."""
    answer(tmp_path, ["softmax"])
    path, name = tmp_path / "answers" / "softmax" / "nothing-but-minus-infinity.safetensors", "softmax/nothing-but-minus-infinity"
    (zeros,) = grade([tmp_path], ["softmax"])
    declares(tmp_path, conventions={"empty_rows": "nan", "empty_lse": "any"})   # of which one concerns other operations alone
    (zeros_declared,) = grade([tmp_path], ["softmax"])
    changed(lambda t: t.update(p=np.full_like(t["p"], np.nan)))(path)
    (nan_declared,) = grade([tmp_path], ["softmax"])
    (tmp_path / "declaration.json").unlink()
    (nan,) = grade([tmp_path], ["softmax"])
    assert (zeros.full, nan_declared.full) == (True, True)
    assert [list(losses(one)) for one in (zeros_declared, nan)] == [[name], [name]]


@pytest.mark.parametrize("wide", [{"exp_ulps": 1e300}, {"accumulate": "float8_e5m2"}, {"exp_ulps": 1e7, "log_ulps": 1e7}])
def test_a_declaration_under_which_zeros_pass_earns_nothing(wide: dict[str, Any], everything: Path, tmp_path: Path) -> None:
    """Zeros under the widest of declarations have no more points than without one, and the declaration is shown."""
    zeros(everything, tmp_path, PAIR)
    plain = judged(tmp_path)
    declares(tmp_path, arithmetic=wide)
    one = judged(tmp_path)
    assert one.score <= plain.score
    assert one.max_score == plain.max_score
    assert one.flags[0].startswith("declares the arithmetic")


def test_no_declaration_takes_a_question_away(tmp_path: Path) -> None:
    """A convention that leaves every draw open promises nothing, and so earns nothing."""
    answer(tmp_path, ["sample", "speculative_verify"])
    (plain,) = grade([tmp_path], ["sample", "speculative_verify"])
    declares(tmp_path, conventions={"uniforms": "own"})
    (one,) = grade([tmp_path], ["sample", "speculative_verify"])
    assert plain.full
    assert (one.score, one.max_score) == (0, plain.max_score)
    assert "promises nothing" in one.criteria[0].reason


@pytest.mark.parametrize("broken", [
    "[]", "{", '{"arithmetic": "fast"}', '{"arithmetic": {"exp_ulps": "4"}}', '{"arithmetic": {"exp_ulps": 1e999}}',
    '{"arithmetic": {"exp_ulps": NaN}}', '{"arithmetic": {"truncating": 1}}', '{"arithmetic": {"speed": 1}}', '{"arithmetic": 3}',
    '{"conventions": {"empty_rows": "seven"}}', '{"conventions": {"rows": "nan"}}', '{"conventions": []}', '{"points": 100}', "[" * 50_000,
])  # fmt: skip
def test_a_broken_declaration_is_told_and_not_believed(broken: str, student: Path) -> None:
    (student / "declaration.json").write_text(broken)
    (one,) = grade([student], ["softmax"])
    assert one.full
    assert len(one.flags) == 1
    assert one.flags[0].startswith("judged under the defaults, since unreadable: ")


def test_whoever_judges_may_declare_for_all(student: Path, tmp_path: Path) -> None:
    declares(student, arithmetic={"out": "float64"})
    (tmp_path / "defaults.json").write_text("{}")
    assert not judged(student).full
    assert judged(student, declaration=tmp_path / "defaults.json").full
    with pytest.raises(UsageError, match="--declaration: missing"):
        judged(student, declaration=tmp_path / "elsewhere.json")
    (tmp_path / "defaults.json").write_text("[]")
    with pytest.raises(UsageError, match="--declaration: unreadable"):
        judged(student, declaration=tmp_path / "defaults.json")


# What else lies in a folder -----------------------------------------------------------------------------------------------


def test_the_index_of_a_folder_is_not_believed(everything: Path, tmp_path: Path) -> None:
    export(tmp_path / "student", ["softmax"])
    (tmp_path / "student" / INDEX).write_text('{"version": 1, "cases": []}')
    (one,) = grade([tmp_path / "student"], ["softmax"])
    assert (one.score, one.max_score) == (0, 16)


def test_surplus_files_and_tensors_are_named(student: Path) -> None:
    changed(lambda t: t.update(dq=t["out"]))(student / FILE)
    (student / "answers" / "softmax" / "pair.txt").write_text("")
    os.makedirs(os.fsencode(student / "answers") + b"/soft\x1b[31m\xffmax")
    (student / "answers" / os.fsdecode(b"soft\x1b[31m\xffmax") / "p").write_text("")
    (student / "answers" / "up").symlink_to(student.parent)
    one = judged(student)
    assert one.full
    assert one.flags == ["tensors that answer nothing: dq in merge_attention/near.safetensors",
                         "files that answer nothing: soft?[31m?max/p, softmax/pair.txt, up"]  # fmt: skip
    "".join(one.flags).encode()


def test_tensors_under_other_names_are_one_flag(student: Path) -> None:
    """A whole folder that calls the results otherwise; and names that are made to fill the screen."""
    for path in (student / "answers").rglob("*.safetensors"):
        changed(lambda t: t.update({f"{name}put": t.pop(name) for name in list(t)}))(path)
    one = judged(student)
    assert one.score == 0
    assert one.flags == ["tensors that answer nothing: pput in softmax/one-entry.safetensors and 15 more; "
                         "lseput, output in merge_attention/smallest.safetensors and 11 more"]  # fmt: skip
    for number, path in enumerate(sorted((student / "answers").rglob("*.safetensors"))):
        changed(lambda t, number=number: t.update({f"{number:02d}" * 300: np.zeros(1)}))(path)
    (flag,) = judged(student).flags
    assert flag.endswith(f"; {28 - MOST_SHOWN} other kinds")
    assert len(flag) < (MOST_SHOWN + 1) * (LONGEST + 60)


def test_many_surplus_files_are_counted(student: Path) -> None:
    for number in range(40):
        (student / "answers" / f"{number:02d}").write_text("")
    (flag,) = judged(student).flags
    assert flag.endswith("14, 15 and 24 more")


def test_one_bad_folder_never_stops_the_rest(student: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a folder")
    (tmp_path / "empty").mkdir()
    grades = grade([tmp_path / "notes.txt", tmp_path / "empty", student, tmp_path / "nowhere", student], PAIR)
    assert [one.full for one in grades] == [False, False, True, False, True]
    assert [one.flags for one in grades] == [["no folder"], ["holds no answers/"], [], ["no folder"], []]
    assert grades[0].max_score == grades[2].max_score
    with pytest.raises(UsageError, match="want a folder with answers/"):
        grade([tmp_path / "nowhere"], PAIR)


def test_folders_of_one_name_are_told_apart(student: Path, tmp_path: Path) -> None:
    shutil.copytree(student, tmp_path / "second" / "student")
    assert [one.submission for one in grade([student, tmp_path / "second" / "student"], ["softmax"])] == [
        str(student), str(tmp_path / "second" / "student")]  # fmt: skip


def test_a_failure_of_the_judge_is_told_apart_and_stops_nothing(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = judging._fault

    def broken(name: str, got: Any, measure: Any) -> str:
        if name == "lse":
            raise ZeroDivisionError("ours")
        return fault(name, got, measure)

    monkeypatch.setattr(judging, "_fault", broken)
    one = judged(student)
    assert {name.partition("/")[0] for name in losses(one)} == {"merge_attention"}
    assert one.flags[0] == "the judge failed on merge_attention/smallest: ZeroDivisionError: ours"
    assert not one.full
