"""Plan files: streamed, whole or absent, and clear about the line that is wrong."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from golden_plans import heterogeneous, regrouping

from seqplan import Plan, read_plans, to_json, write_plans
from seqplan.plans.format.codec import PlanError
from seqplan.plans.format.fields import LONGEST, read_text


@pytest.fixture
def two() -> list[Plan]:
    return heterogeneous()


def lines(plans: list[Plan]) -> bytes:
    return b"".join(to_json(plan).encode() + b"\n" for plan in plans)


def test_round_trip(tmp_path: Path, two: list[Plan]) -> None:
    path = tmp_path / "plans.jsonl"
    with write_plans(path) as write:
        for plan in two:
            write(plan)
        assert not path.exists()
    assert path.read_bytes() == lines(two)
    assert list(read_plans(path)) == two


def test_plans_come_one_at_a_time(tmp_path: Path, two: list[Plan]) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_bytes(lines(two[:1]) + b"broken\n")
    plans = read_plans(path)
    assert next(plans) == two[0]
    with pytest.raises(PlanError, match=r"plans\.jsonl:2: not a JSON plan"):
        next(plans)


def test_a_file_without_plans(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    with write_plans(path):
        pass
    assert list(read_plans(path)) == []


@pytest.mark.parametrize("size", [1, 100, -2])
def test_a_cut_line_is_named(tmp_path: Path, two: list[Plan], size: int) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_bytes(lines(two[:1]) + lines(two[1:])[:size])
    with pytest.raises(PlanError, match=r"plans\.jsonl:2: ") as raised:
        list(read_plans(path))
    assert "\n" not in str(raised.value)


def test_a_missing_line_end_is_no_cut(tmp_path: Path, two: list[Plan]) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_bytes(lines(two)[:-1])
    assert list(read_plans(path)) == two


def test_lines_that_do_not_follow(tmp_path: Path, two: list[Plan]) -> None:
    path = tmp_path / "plans.jsonl"
    for plans, expected in (
        ([two[1], two[0]], r"plans\.jsonl:2: step: 16 does not follow step 17"),
        ([two[0], two[0]], r"plans\.jsonl:2: step: 16 does not follow step 16"),
        ([regrouping()[0], two[0]], r"plans\.jsonl:2: world_size: 8, but 6 at step 0"),
    ):
        path.write_bytes(lines(plans))
        with pytest.raises(PlanError, match=expected):
            list(read_plans(path))


def test_documents_of_several_lines_are_named(tmp_path: Path, two: list[Plan]) -> None:
    path = tmp_path / "plans.jsonl"
    marks = {"candidates": [], "judged_batches": 1}
    for document, expected in (
        (marks, r"plans\.jsonl: is a proposal, not a plan\. Name another file"),
        (json.loads(to_json(two[0])), r"plans\.jsonl: has a plan on several lines\. Write each"),
        ({"other": 1}, r"plans\.jsonl:1: not a JSON plan"),
    ):
        path.write_text(json.dumps(document, indent=1))
        with pytest.raises(PlanError, match=expected):
            list(read_plans(path))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_bytes(b"\xff\n")
    with pytest.raises(PlanError, match=r"plans\.jsonl:1: not UTF-8"):
        list(read_plans(path))


def test_a_line_without_end(tmp_path: Path, two: list[Plan]) -> None:
    """Such as /dev/zero, which took all memory."""
    path = tmp_path / "plans.jsonl"
    path.write_bytes(lines(two[:1]))
    os.truncate(path, path.stat().st_size + LONGEST)
    plans = read_plans(path)
    assert next(plans) == two[0]
    with pytest.raises(PlanError, match=r"plans\.jsonl:2: has 268,435,456 bytes or more\. Name a"):
        next(plans)


def test_a_document_without_end(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.touch()
    os.truncate(path, LONGEST)
    with pytest.raises(ValueError, match=r"profile\.json: has 268,435,456 bytes or more\. Check"):
        read_text(path, ValueError)


def test_a_failed_writer_leaves_the_old_file(tmp_path: Path, two: list[Plan]) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_bytes(lines(two[:1]))

    def out_of_order() -> None:
        with write_plans(path) as write:
            write(two[1])
            write(two[0])

    with pytest.raises(PlanError, match="step: 16 does not follow step 17"):
        out_of_order()
    assert path.read_bytes() == lines(two[:1])
    assert [entry.name for entry in tmp_path.iterdir()] == ["plans.jsonl"]


def test_strictness_is_passed_on(tmp_path: Path, two: list[Plan]) -> None:
    path = tmp_path / "plans.jsonl"
    text = to_json(replace(two[0], step=1)).replace('"gap"', '"extra":1,"gap"')
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(PlanError, match=":1: extra: is not a field"):
        list(read_plans(path))
    with pytest.raises(PlanError, match=":1: digest: "):
        list(read_plans(path, strict=False))
