"""The producer: order, bytes, deaths of workers, failures in their place, and its end."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import producer_cases
import pytest
from producer_cases import (
    DEADLY,
    dense_proposal,
    drawn_batches,
    lines,
    lockstep_proposal,
    until_failure,
)

from seqplan import Batch, Infeasible, Plan, StepPlanner, from_json
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.workers import processes as process_workers
from seqplan.planner.workers.planned_step import TimedPlan, plan_one
from seqplan.planner.workers.pool import DEATHS, WorkerDied, WorkerPool
from seqplan.planner.workers.processes import ProcessWorker, ProcessWorkforce
from seqplan.planner.workers.produce import produce

PROPOSALS = {"dense": dense_proposal, "lockstep": lockstep_proposal}


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("kind", PROPOSALS)
def test_any_number_of_workers_gives_the_same_bytes(kind: str) -> None:
    proposal, batches = PROPOSALS[kind](), drawn_batches(12)
    alone = lines(proposal, batches)
    assert [from_json(line).step for line in alone] == list(range(12))
    assert lines(proposal, batches, workers=2) == alone
    assert lines(proposal, batches, workers=3) == alone


def test_a_step_does_not_depend_on_the_steps_before_it() -> None:
    proposal, batches = dense_proposal(), drawn_batches(6)
    assert lines(proposal, batches)[3:] == lines(proposal, batches[3:])
    assert lines(proposal, batches[::-1])[::-1] == lines(proposal, batches)


def test_a_plan_that_breaks_a_rule_is_an_error() -> None:
    class Miscounting(StepPlanner):
        def plan(self, batch: Batch) -> Plan:
            return replace(super().plan(batch), tokens=1)

    with pytest.raises(RuntimeError, match="step 0: the plan breaks a rule, please report: tokens"):
        plan_one(Miscounting(dense_proposal()), drawn_batches(1)[0])


def test_killed_workers_change_nothing() -> None:
    """Workers are killed while they start, while steps are handed out, and two at once."""
    proposal, batches = dense_proposal(), drawn_batches(24, sequences=200)
    expected = lines(proposal, batches)
    moments = random.Random(7)

    def kill(step: int) -> None:
        if step in (4, 13):
            time.sleep(moments.random() * 0.05)
            children = multiprocessing.active_children()
            for child in children if step == 13 else children[:1]:
                child.kill()

    starting = threading.Thread(target=_kill_when_started)
    starting.start()
    plans = lines(proposal, batches, 2, kill)
    starting.join()
    assert plans == expected


def _kill_when_started() -> None:
    while not (children := multiprocessing.active_children()):
        time.sleep(0.005)
    children[0].kill()


@pytest.mark.skipif(sys.platform != "linux", reason="planners are fresh processes there")
def test_a_killed_server_changes_nothing() -> None:
    """What planners are forked from is killed, and with it one of them."""

    def kill(step: int) -> None:
        if step == 4:
            (child, *_) = multiprocessing.active_children()
            stat = Path(f"/proc/{child.pid}/stat").read_text()
            server = int(stat.rpartition(")")[2].split()[1])
            assert server != os.getpid()
            os.kill(server, signal.SIGKILL)
            child.kill()

    proposal, batches = dense_proposal(), drawn_batches(16)
    assert lines(proposal, batches, 2, kill) == lines(proposal, batches)


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that a batch with the deadly sequence kills."""
    monkeypatch.setattr(process_workers, "_serve", producer_cases.serve_and_die)


@pytest.mark.usefixtures("deadly")
def test_a_step_that_kills_its_worker_every_time_is_named() -> None:
    proposal, batches = dense_proposal(), drawn_batches(8)
    expected = lines(proposal, batches[:3])
    batches[3] = Batch(3, (DEADLY, 5), (100, 200))
    plans, error = until_failure(
        produce(proposal, batches, options=PlanningOptions(seed=3), workers=2)
    )
    assert isinstance(error, WorkerDied)
    assert str(error) == f"step 3: planning it ended its worker process {DEATHS} times"
    assert [planned.line for planned in plans] == expected


def test_an_infeasible_step_is_reported_in_its_place() -> None:
    proposal, batches = dense_proposal(), drawn_batches(6)
    batches[2] = Batch(2, (8, 9), (100, 32768 * 30))
    messages = set()
    for workers in (1, 2):
        plans, error = until_failure(produce(proposal, batches, workers=workers))
        assert isinstance(error, Infeasible)
        assert [planned.step for planned in plans] == [0, 1]
        messages.add(str(error))
    assert len(messages) == 1
    assert messages.pop().startswith("step 2: sequence 9 has 983040 tokens")


def test_a_failing_source_of_batches_is_reported_after_the_steps_before_it() -> None:
    def source() -> Iterator[Batch]:
        yield from drawn_batches(2)
        raise ValueError("line 3: cut")

    for workers in (1, 2):
        plans, error = until_failure(produce(dense_proposal(), source(), workers=workers))
        assert isinstance(error, ValueError)
        assert str(error) == "line 3: cut"
        assert [planned.step for planned in plans] == [0, 1]


@pytest.mark.parametrize(("look_ahead", "bound"), [(1, 1), (3, 3), (None, 4)])
def test_the_look_ahead_bounds_the_batches_drawn(look_ahead: int | None, bound: int) -> None:
    drawn = 0

    def source() -> Iterator[Batch]:
        nonlocal drawn
        for batch in drawn_batches(12, sequences=10):
            drawn += 1
            yield batch

    handed_out = 0
    for planned in produce(dense_proposal(), source(), workers=2, look_ahead=look_ahead):
        # The step just handed out counts no more: it is the consumer's.
        assert drawn - handed_out <= bound
        handed_out += 1
        assert planned.step == handed_out - 1
    assert handed_out == drawn == 12


def test_closing_ends_the_workers() -> None:
    endless = (Batch.from_lengths([100, 200], step) for step in range(10**9))
    produced = produce(dense_proposal(), endless, workers=2)
    assert next(produced).step == 0
    assert multiprocessing.active_children()
    assert isinstance(produced, Iterator)
    produced.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_a_consumer_that_fails_ends_the_workers() -> None:
    endless = (Batch.from_lengths([100, 200], step) for step in range(10**9))
    produced = produce(dense_proposal(), endless, workers=2)

    def consume(planned: Iterator[TimedPlan]) -> None:
        for _ in planned:
            raise LookupError

    with pytest.raises(LookupError):
        consume(produced)
    del produced
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_while_workers_start_reaches_the_consumer() -> None:
    """Starting workers shields them from Ctrl-C, but not their parent."""
    endless = (Batch.from_lengths([100, 200], step) for step in range(10**9))
    others = {process.pid for process in multiprocessing.active_children()}

    def interrupt() -> None:
        while not {process.pid for process in multiprocessing.active_children()} - others:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)

    def consume() -> None:
        interrupting.start()
        for _ in produce(dense_proposal(), endless, workers=2):
            pass

    with pytest.raises(KeyboardInterrupt):
        consume()
    interrupting.join()


def test_from_another_thread() -> None:
    plans: list[str] = []
    batches = drawn_batches(4)
    thread = threading.Thread(target=lambda: plans.extend(lines(dense_proposal(), batches, 2)))
    thread.start()
    thread.join()
    assert plans == lines(dense_proposal(), batches)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="workers must be 1024 or fewer: 1025"):
        next(produce(dense_proposal(), [], workers=1025))
    with pytest.raises(ValueError, match="workers must be W or ray:W, W of 1 or more: 0"):
        next(produce(dense_proposal(), [], workers=0))
    with pytest.raises(ValueError, match="look-ahead must be 1 or more, not 0"):
        next(produce(dense_proposal(), [], workers=2, look_ahead=0))
    assert list(produce(dense_proposal(), [], workers=2)) == []


class Unlucky(ProcessWorkforce):
    """Its first workers die before they are ready."""

    left = 0

    def start(self) -> ProcessWorker:
        if self.left == 0:
            return super().start()
        self.left -= 1
        with patch.object(process_workers, "_serve", producer_cases.die):
            return super().start()


@pytest.mark.parametrize("killed", [4, 1000])
def test_a_death_while_a_worker_starts_is_no_step_s_fault(killed: int) -> None:
    proposal, batches = dense_proposal(), drawn_batches(1)
    workforce = Unlucky(proposal.to_json(), PlanningOptions(seed=3))
    workforce.left = killed
    pool = WorkerPool(workforce, 1)
    try:
        future = pool.submit(batches[0])
        if killed == 4:
            assert [future.result().line] == lines(proposal, batches)
        else:
            with pytest.raises(WorkerDied, match="ended 6 times while it started"):
                future.result()
    finally:
        pool.stop()
