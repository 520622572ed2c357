"""If one rank fails or differs, all ranks get the same error, and none is left waiting."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from consuming import HERE_S, consume, control_group, fan_out, prepare_tokens, threads
from plan_builder import write_file
from plan_service import PlanService, serving
from ranks import run_ranks
from small_plans import small_plan, small_plans

from seqplan import RankView, digest
from seqplan.runtime.errors import DataError, PlanError, RankLost
from seqplan.runtime.sources.agreement import RECORD_BYTES, Record, State, disagreement
from seqplan.runtime.sources.consumer import PlanConsumer
from seqplan.runtime.sources.http_source import HttpSource
from seqplan.runtime.sources.source import FileSource, PlanSource

# What the ranks run


def failing_scenarios(rank: int, world_size: int, scenarios: dict[str, Any]) -> dict[str, str]:
    """What each scenario raises on this rank; checks that nothing else is left of it."""
    return {
        name: steps_until_failure(rank, world_size, name, where)
        for name, where in scenarios.items()
    }


def steps_until_failure(rank: int, world_size: int, scenario: str, where: Any) -> str:
    """What the consumer raises; all steps from 1 on are acknowledged."""
    source: PlanSource
    prepare: Callable[[RankView], Any] = prepare_tokens
    timeout_s = HERE_S
    where = where[rank] if isinstance(where, list) else where
    if scenario == "service":
        source = HttpSource(where, "a job")
    elif scenario == "planner":
        source = fan_out(where, rank, world_size)
    elif scenario.startswith("hang") and rank == 1:
        source, timeout_s = Hanging(deaf=scenario == "hang for ever"), 2.0
    elif scenario == "acks" and rank == 1:
        source = Unacknowledged(where)
    else:
        source = FileSource(where, world_size=world_size)
    if scenario == "data" and rank == 1:
        prepare = short_of_data
    elif scenario == "bug" and rank == 1:
        prepare = {}.__getitem__
    with consume(source, rank, world_size, prepare=prepare, timeout_s=timeout_s) as steps:
        with pytest.raises(PlanError) as caught:
            run_out(steps)
        with pytest.raises(PlanError, match="after a failure no step follows"):
            next(steps)
    # Only who does not listen can keep its thread, which dies with the process.
    assert len(threads()) == (rank == 1 and scenario == "hang for ever")
    return str(caught.value)


def run_out(steps: PlanConsumer[Any]) -> None:
    for step in steps:
        if step.view.step >= 1:
            steps.acknowledge(step.view.step)


def short_of_data(view: RankView) -> None:
    if view.step == 2:
        raise DataError("sample 201 of step 2: has 3 tokens, the plan requires 9")


class Hanging:
    """A source that never answers; ``deaf``: not even when it is closed."""

    def __init__(self, deaf: bool) -> None:
        self._closed = threading.Event()
        self._deaf = deaf

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        while self._deaf:
            time.sleep(3600)
        self._closed.wait()
        raise PlanError("closed")

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        raise AssertionError

    def close(self) -> None:
        self._closed.set()


class Unacknowledged(FileSource):
    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        raise PlanError(f"the service has lost step {step}")

    def acknowledge_all(
        self, step: int, digest: str | None, measured_ms: Sequence[float | None]
    ) -> None:
        raise PlanError(f"the service has lost step {step}")


def lost_rank(rank: int, world_size: int, path: Path) -> str:
    """Rank 1 stops requesting steps; the others fail by the group's time-out."""
    group = control_group(3)
    with consume(FileSource(path), rank, world_size, control_group=group) as steps:
        next(steps)
        if rank == 1:
            return ""
        with pytest.raises(RankLost, match="step 1: a rank is lost: ") as caught:
            next(steps)
        return str(caught.value)


# The tests


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What every rank of three raised in each scenario: the same on all of them."""
    folder = tmp_path_factory.mktemp("plans")
    good = write_file(folder / "good.jsonl", small_plans(4, 3))
    short = write_file(folder / "short.jsonl", small_plans(2, 3))
    changed = write_file(
        folder / "changed.jsonl", [*small_plans(2, 3), small_plan(2, 3, seed=1), small_plan(3, 3)]
    )
    damaged = folder / "damaged.jsonl"
    lines = good.read_text(encoding="utf-8").splitlines()
    damaged.write_text("\n".join([*lines[:2], lines[2].replace("0.0", "1.0", 1)]) + "\n")
    one, other = PlanService(small_plans(4, 3)), PlanService(small_plans(2, 3))
    other.failure = (424, {"title": "The planner failed", "detail": "worker killed"})
    with serving(one), serving(other):
        scenarios: dict[str, Any] = {
            "digest": [good, changed, good],
            "end": [good, short, good],
            "planner": damaged,
            "service": [one.url, other.url, one.url],
            **dict.fromkeys(["data", "bug", "hang", "acks", "hang for ever"], good),
        }
        by_rank = run_ranks(failing_scenarios, 3, scenarios, timeout_s=120)
    assert by_rank[0] == by_rank[1] == by_rank[2]
    messages: dict[str, str] = by_rank[0]
    assert not any("\n" in text for text in messages.values())
    return messages


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("end", "step 2: plans end on rank 1 but not on rank 0"),
        ("planner", r"rank 0: .*damaged\.jsonl:3: digest: .* does not match the content"),
        (
            "service",
            "rank 1: http://127.0.0.1:.* step 2 of rank 1: The planner failed: worker kill",
        ),
        ("data", "rank 1: sample 201 of step 2: has 3 tokens, the plan requires 9$"),
        ("bug", r"rank 1: KeyError: RankView\("),
        ("hang", "rank 1: step 0: not there after 2 s, waiting for its plan$"),
        ("hang for ever", "rank 1: step 0: not there after 2 s, waiting for its plan$"),
        ("acks", "rank 1: the service has lost step 1$"),
    ],
)
def test_one_rank_alone_fails(failures: dict[str, str], scenario: str, message: str) -> None:
    assert re.match(message, failures[scenario])


def test_a_digest_that_differs_on_one_rank(failures: dict[str, str]) -> None:
    wrong, right = digest(small_plan(2, 3, seed=1)), digest(small_plan(2, 3))
    assert failures["digest"] == f"step 2: rank 1 has the plan {wrong}, rank 0 {right}"


def test_a_rank_that_stops_asking(tmp_path: Path) -> None:
    messages = run_ranks(lost_rank, 2, write_file(tmp_path / "plans.jsonl", small_plans(4, 2)))
    assert "\n" not in messages[0]


def test_records_are_cut_between_characters() -> None:
    record = Record(State.FAILED, 2**40, "sha256:" + "a" * 64, "…" * 200)
    raw = record.to_bytes()
    assert len(raw) == RECORD_BYTES
    back = Record.from_bytes(raw)
    assert (back.state, back.step, back.digest) == (record.state, record.step, record.digest)
    assert back.message == "…" * 133
    assert disagreement([Record(State.READY, 1, "a"), Record(State.READY, 2, "a")]) == (
        "rank 1 is at step 2, rank 0 at step 1"
    )
    assert disagreement([Record(State.END, 3), Record(State.READY, 3, "a")]) == (
        "step 3: plans end on rank 0 but not on rank 1"
    )
    assert disagreement([record, record]) == f"rank 0: {record.message}"
    assert disagreement([Record(State.READY, 1, "a")] * 4) is None
