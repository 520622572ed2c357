"""A rank's steps on real ranks: in order, agreed upon, and never one rank left waiting."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from plan_service import PlanService, serving
from ranks import run_ranks
from small_plans import small_plan, small_plans, view_of

from seqplan.plans.codec import digest, to_json
from seqplan.plans.plan import Plan
from seqplan.plans.rank_view import RankView
from seqplan.runtime.agreement import RECORD_BYTES, Record, State, disagreement
from seqplan.runtime.consumer import PlanConsumer
from seqplan.runtime.errors import DataError, EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.fan_out import FanOutSource
from seqplan.runtime.http_source import HttpSource
from seqplan.runtime.plan_sources import FileSource, PlanSource
from seqplan.runtime.token_data import SeededTokens, load_share

HERE_S = 20.0


def written(path: Path, plans: list[Plan]) -> Path:
    path.write_text("".join(to_json(plan) + "\n" for plan in plans), encoding="utf-8")
    return path


def control_group(limit_s: float = 60) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s))
    assert group is not None
    return group


def prepare_tokens(view: RankView) -> int:
    """Loads the rank's tokens, as a trainer does; the sum of what was loaded."""
    data = SeededTokens(1000, 0)
    return sum(
        int(load_share(data, batch, step=view.step).tokens.sum())
        for pipeline in view.pipelines
        for batch in pipeline.micro_batches
    )


def fan_out(path: Path, rank: int, world_size: int) -> FanOutSource:
    store = dist.distributed_c10d._get_default_store()
    return FanOutSource(lambda: FileSource(path), store, rank, world_size)


# What the ranks run


def every_step(rank: int, world_size: int, kind: str, where: Any) -> tuple[list[Any], int]:
    source: PlanSource
    if kind == "file":
        source = FileSource(where, world_size=world_size)
    elif kind == "http":
        source = HttpSource(where, "a job")
    else:
        source = fan_out(where, rank, world_size)
    seen: list[Any] = []
    with PlanConsumer(
        source,
        rank=rank,
        world_size=world_size,
        prepare=prepare_tokens,
        control_group=control_group(),
        start_step=5,
        timeout_s=HERE_S,
    ) as steps:
        for step in steps:
            assert step.view == view_of(small_plan(step.view.step, world_size), rank)
            seen.append((step.view.step, step.view.digest, step.prepared))
            steps.acknowledge(step.view.step)
        with pytest.raises(StopIteration):
            next(steps)
    return seen, len(threads())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("plans of")]


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
    group = control_group()
    with PlanConsumer(
        source,
        rank=rank,
        world_size=world_size,
        prepare=prepare,
        control_group=group,
        timeout_s=timeout_s,
    ) as steps:
        with pytest.raises(PlanError) as told:
            run_out(steps)
        with pytest.raises(PlanError, match="after a failure no step follows"):
            next(steps)
    # Only who does not listen can keep its thread, which dies with the process.
    assert len(threads()) == (rank == 1 and scenario == "hang for ever")
    return str(told.value)


def run_out(steps: PlanConsumer[Any]) -> None:
    for step in steps:
        if step.view.step >= 1:
            steps.acknowledge(step.view.step)


def short_of_data(view: RankView) -> None:
    if view.step == 2:
        raise DataError("sample 201 of step 2: has 3 tokens, the plan wants 9")


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


def failing_trainer(rank: int, world_size: int, path: Path) -> int:
    """The main thread raises in the middle of a step."""
    with (
        pytest.raises(ZeroDivisionError),
        PlanConsumer(
            FileSource(path),
            rank=rank,
            world_size=world_size,
            prepare=prepare_tokens,
            control_group=control_group(),
        ) as steps,
    ):
        print(next(steps).prepared // 0)
    return len(threads())


def lost_rank(rank: int, world_size: int, path: Path) -> str:
    """Rank 1 stops asking for steps; the others are told by the group's time-out."""
    group = control_group(3)
    with PlanConsumer(
        FileSource(path),
        rank=rank,
        world_size=world_size,
        prepare=prepare_tokens,
        control_group=group,
    ) as steps:
        next(steps)
        if rank == 1:
            return ""
        with pytest.raises(PlanError, match="step 1: the ranks could not agree: ") as told:
            next(steps)
        return str(told.value)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def many_steps(rank: int, world_size: int, path: Path) -> tuple[int, list[tuple[int, int]]]:
    """Threads and descriptors early and late; the last steps are fetched by then at neither."""
    counts = []
    done = 0
    with PlanConsumer(
        fan_out(path, rank, world_size),
        rank=rank,
        world_size=world_size,
        prepare=prepare_tokens,
        control_group=control_group(),
        timeout_s=HERE_S,
    ) as steps:
        for step in steps:
            done += 1
            steps.acknowledge(step.view.step)
            if done in (20, 290):
                counts.append((len(os.listdir("/proc/self/task")), open_files()))
    return done, counts


# The tests


@pytest.mark.parametrize("kind", ["file", "http", "fan out"])
def test_every_rank_runs_every_step(tmp_path: Path, kind: str) -> None:
    plans = small_plans(6, 2, first=5)
    service = PlanService(plans)
    with serving(service):
        where = service.url if kind == "http" else written(tmp_path / "plans.jsonl", plans)
        results = run_ranks(every_step, 2, kind, where)
    for rank, (seen, left) in enumerate(results):
        assert [item[:2] for item in seen] == [(plan.step, digest(plan)) for plan in plans]
        assert [item[2] for item in seen] == [prepare_tokens(view_of(p, rank)) for p in plans]
        assert left == 0
    assert len(service.acks) == (12 if kind == "http" else 0)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What every rank of three raised in each scenario: the same on all of them."""
    folder = tmp_path_factory.mktemp("plans")
    good = written(folder / "good.jsonl", small_plans(4, 3))
    short = written(folder / "short.jsonl", small_plans(2, 3))
    changed = written(
        folder / "changed.jsonl",
        [*small_plans(2, 3), small_plan(2, 3, seed=1), small_plan(3, 3)],
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
        told = run_ranks(failing_scenarios, 3, scenarios, timeout_s=120)
    assert told[0] == told[1] == told[2]
    found: dict[str, str] = told[0]
    assert not any("\n" in text for text in found.values())
    return found


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("end", "step 2: plans end on rank 1 but not on rank 0"),
        ("planner", r"rank 0: .*damaged\.jsonl:3: digest: .* does not match the content"),
        (
            "service",
            "rank 1: http://127.0.0.1:.* step 2 of rank 1: The planner failed: worker kill",
        ),
        ("data", "rank 1: sample 201 of step 2: has 3 tokens, the plan wants 9$"),
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


def test_a_trainer_that_raises_leaves_no_thread(tmp_path: Path) -> None:
    path = written(tmp_path / "plans.jsonl", small_plans(4, 2))
    assert run_ranks(failing_trainer, 2, path) == [0, 0]


def test_a_rank_that_stops_asking(tmp_path: Path) -> None:
    path = written(tmp_path / "plans.jsonl", small_plans(4, 2))
    told = run_ranks(lost_rank, 2, path)
    assert "\n" not in told[0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_nothing_grows(tmp_path: Path) -> None:
    path = written(tmp_path / "plans.jsonl", small_plans(300, 2))
    for done, counts in run_ranks(many_steps, 2, path, timeout_s=120):
        assert done == 300
        assert counts[0] == counts[1]


# One rank


class Late:
    """Gives the plans of a list, one of them only after ``hold`` is set."""

    def __init__(self, plans: list[Plan], late: int) -> None:
        self.plans = plans
        self.late = late
        self.hold = threading.Event()
        self.asked: list[int] = []

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        self.asked.append(step)
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
            while len(source.asked) < taken + 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            assert source.asked == list(range(taken + 3))
            assert next(steps).view.step == taken
    assert not threads()


def test_time_counts_from_when_a_step_is_asked_for() -> None:
    """A plan may be late while nobody wants it; the source's own time-outs are asked again."""
    source = Late(small_plans(3, 1), late=1)
    with alone(source, timeout_s=1.0) as steps:
        next(steps)
        time.sleep(1.5)
        source.hold.set()
        assert next(steps).view.step == 1
        assert source.asked.count(1) > 1
        assert [step.view.step for step in steps] == [2]
    late = Late(small_plans(3, 1), late=1)
    with alone(late, timeout_s=0.3) as steps:
        next(steps)
        time.sleep(0.5)
        with pytest.raises(PlanError, match=r"not there after 0\.3 s, waiting .*: step 1 is late"):
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
        (small_plan(4, 1), "step 0: the view has step 4, this rank wants 0"),
        (small_plan(0, 2), "step 0: the view has world_size 2, this rank wants 1"),
    ):
        with alone(Late([plan], late=-1)) as steps, pytest.raises(PlanError, match=message):
            next(steps)


def test_arguments_and_steps_that_do_not_fit() -> None:
    plans = small_plans(1, 1)
    for more, message in (
        ({"prefetch": 0}, "prefetch must be at least 1, not 0"),
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
