"""A rank's steps on real ranks: in order, agreed upon, and never one rank left waiting."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from consuming import HERE_S, consume, fan_out, prepare_tokens, threads
from plan_builder import write_file
from plan_service import PlanService, serving
from ranks import run_ranks
from small_plans import small_plan, small_plans, view_of

from seqplan import Plan, RankView, digest
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.sources.consumer import PlanConsumer
from seqplan.runtime.sources.http_source import HttpSource
from seqplan.runtime.sources.source import FileSource, PlanSource

# What the ranks run


def every_step(rank: int, world_size: int, kind: str, where: Any) -> tuple[list[Any], int]:
    source: PlanSource
    if kind == "file":
        source = FileSource(where, world_size=world_size)
    elif kind == "http":
        source = HttpSource(where, "a job")
    else:
        source = fan_out(where, rank, world_size)
    ran: list[Any] = []
    with consume(source, rank, world_size, start_step=5, timeout_s=HERE_S) as steps:
        for step in steps:
            assert step.view == view_of(small_plan(step.view.step, world_size), rank)
            ran.append((step.view.step, step.view.digest, step.prepared))
            steps.acknowledge(step.view.step)
        with pytest.raises(StopIteration):
            next(steps)
    return ran, len(threads())


def failing_trainer(rank: int, world_size: int, path: Path) -> int:
    """The main thread raises in the middle of a step."""
    with (
        pytest.raises(ZeroDivisionError),
        consume(FileSource(path), rank, world_size) as steps,
    ):
        print(next(steps).prepared // 0)
    return len(threads())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def many_steps(rank: int, world_size: int, path: Path) -> tuple[int, list[tuple[int, int]]]:
    """Threads and descriptors early and late; the last steps are fetched by then at neither."""
    counts = []
    count = 0
    source = fan_out(path, rank, world_size)
    # Ahead by no time: else all are fetched, and the thread has ended, when it is counted.
    with consume(source, rank, world_size, timeout_s=HERE_S, ahead_s=0.0) as steps:
        for step in steps:
            count += 1
            steps.acknowledge(step.view.step)
            if count in (20, 290):
                counts.append((len(os.listdir("/proc/self/task")), open_files()))
    return count, counts


# The tests


@pytest.mark.parametrize("kind", ["file", "http", "fan out"])
def test_every_rank_runs_every_step(tmp_path: Path, kind: str) -> None:
    plans = small_plans(6, 2, first=5)
    service = PlanService(plans)
    with serving(service):
        where = service.url if kind == "http" else write_file(tmp_path / "plans.jsonl", plans)
        results = run_ranks(every_step, 2, kind, where)
    for rank, (ran, left) in enumerate(results):
        assert [step[:2] for step in ran] == [(plan.step, digest(plan)) for plan in plans]
        assert [step[2] for step in ran] == [prepare_tokens(view_of(p, rank)) for p in plans]
        assert left == 0
    assert len(service.acks) == (12 if kind == "http" else 0)


def test_a_trainer_that_raises_leaves_no_thread(tmp_path: Path) -> None:
    path = write_file(tmp_path / "plans.jsonl", small_plans(4, 2))
    assert run_ranks(failing_trainer, 2, path) == [0, 0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_nothing_grows(tmp_path: Path) -> None:
    path = write_file(tmp_path / "plans.jsonl", small_plans(300, 2))
    for count, counts in run_ranks(many_steps, 2, path, timeout_s=120):
        assert count == 300
        assert counts[0] == counts[1]


# One rank


class Late:
    """Gives the plans of a list, one of them only after ``hold`` is set."""

    def __init__(self, plans: list[Plan], late: int) -> None:
        self.plans = plans
        self.late = late
        self.hold = threading.Event()
        self.requested: list[int] = []

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        self.requested.append(step)
        if step >= len(self.plans):
            raise EndOfPlans("no more")
        if step == self.late and not self.hold.wait(timeout_s):
            raise PlanTimeout(f"step {step} is late")
        return view_of(self.plans[step], rank)

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        pass

    def close(self) -> None:
        self.hold.set()


def alone(source: PlanSource, **more: Any) -> PlanConsumer[int]:
    fields: dict[str, Any] = {"prepare": prepare_tokens, "control_group": None, **more}
    return PlanConsumer(source, **{"rank": 0, "world_size": 1, **fields})


def test_fetching_stays_within_its_limit() -> None:
    source = Late(small_plans(20, 1), late=-1)
    with alone(source, prefetch=3) as steps:
        for taken in range(4):
            deadline = time.monotonic() + HERE_S
            while len(source.requested) < taken + 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            assert source.requested == list(range(taken + 3))
            assert next(steps).view.step == taken
    assert not threads()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"ahead_s": 0.0}, 2),
        ({"ahead_s": 0.009}, 3),
        ({"ahead_s": 1e9}, 20),
        ({"ahead_s": 1e9, "ahead_bytes": 1}, 2),
    ],
)
def test_views_are_fetched_ahead_by_time_and_bytes(limits: dict[str, Any], expected: int) -> None:
    """At least as many as are prepared, more while they are short and small."""
    source = Late(small_plans(21, 1), late=20)
    with alone(source, prefetch=2, **limits):
        deadline = time.monotonic() + HERE_S
        while len(source.requested) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert sorted({step for step in source.requested if step != source.late}) == [
            *range(expected)
        ]
        source.hold.set()
    assert not threads()


def test_time_counts_from_the_request_of_a_step() -> None:
    """A plan may be late while nobody waits; requests that time out in the source are repeated."""
    source = Late(small_plans(3, 1), late=1)
    with alone(source, timeout_s=1.0) as steps:
        next(steps)
        time.sleep(1.5)
        source.hold.set()
        assert next(steps).view.step == 1
        assert source.requested.count(1) > 1
        assert [step.view.step for step in steps] == [2]
    late = Late(small_plans(3, 1), late=1)
    with alone(late, timeout_s=0.3) as steps:
        next(steps)
        time.sleep(0.5)
        with pytest.raises(PlanError, match=r"not there after 0\.3 s, waiting .*: step 1 is late"):
            next(steps)
    assert not threads()


def test_the_cause_is_known_when_the_time_is_over() -> None:
    """Also if a rank waits from the same moment on as its source."""
    known = pytest.raises(PlanError, match=r"not there after 0\.4 s, .*: step 0 is late")
    with alone(Late(small_plans(1, 1), late=0), timeout_s=0.4) as steps, known:
        next(steps)
    assert not threads()


def test_a_prepare_that_does_not_come_back() -> None:
    go_on = threading.Event()

    def prepare(view: RankView) -> int:
        go_on.wait(HERE_S)
        return 0

    with alone(Late(small_plans(1, 1), late=-1), prepare=prepare, timeout_s=0.2) as steps:
        with pytest.raises(PlanError, match=r"step 0: not there after 0\.2 s, preparing it"):
            next(steps)
        go_on.set()
    assert not threads()


def test_views_that_are_not_for_this_rank() -> None:
    for plan, message in (
        (small_plan(4, 1), "step 0: the view's step must be 0, not 4"),
        (small_plan(0, 2), "step 0: the view's world_size must be 1, not 2"),
    ):
        with alone(Late([plan], late=-1)) as steps, pytest.raises(PlanError, match=message):
            next(steps)


def test_arguments_and_steps_that_do_not_fit() -> None:
    plans = small_plans(1, 1)
    for more, message in (
        ({"prefetch": 0}, "prefetch must be at least 1, not 0"),
        ({"timeout_s": float("nan")}, r"timeout_s: nan\. Give seconds from 0 to 1e\+09"),
        ({"rank": 1}, "rank must be in 0 … 0, not 1"),
        ({"world_size": 2}, "control_group: 2 ranks need one to agree"),
    ):
        with pytest.raises(ValueError, match=message):
            alone(Late(plans, late=-1), **more)
    with alone(Late(plans, late=-1)) as steps:
        with pytest.raises(ValueError, match="step 0 was not handed out"):
            steps.acknowledge(0)
        next(steps)
        steps.acknowledge(0)
        with pytest.raises(ValueError, match="acknowledged already"):
            steps.acknowledge(0)
    with pytest.raises(PlanError, match="the consumer is closed"):
        next(steps)
