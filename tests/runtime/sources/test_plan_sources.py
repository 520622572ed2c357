"""Every source of plans, by one contract; then what only plan files and fan-out can do wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from plan_builder import write_file
from plan_service import PlanService, serving
from random_plans import one_pipeline_plan
from small_plans import small_plan, small_plans, unsound, view_of

from seqplan import Plan, RankView, Scheme, Strategy, digest
from seqplan.plans.plan import Considered
from seqplan.runtime.errors import EndOfPlans, PlanError, PlanTimeout
from seqplan.runtime.sources.fan_out import FanOutSource
from seqplan.runtime.sources.http_source import HttpSource
from seqplan.runtime.sources.source import FileSource, PlanSource

WORLD = 3
SOON_S = 20.0
"""Long enough for the slowest machine; nothing waits so long without errors."""


def new_store() -> dist.Store:  # type: ignore[name-defined]
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )


class Ranks:
    """The source of each rank, of one kind, over the same plans."""

    def __init__(self, kind: str, path: Path, stack: ExitStack) -> None:
        self.kind = kind
        self.path = path
        self.stack = stack
        self.service: PlanService | None = None
        self.sources: list[PlanSource] = []

    def over(self, plans: list[Plan], *, ends: bool = True) -> Ranks:
        """``ends``: whether the plans are all, or more may come."""
        make: Callable[[], PlanSource]
        if self.kind.endswith("http"):
            service = self.service = PlanService(plans, ends=ends)
            self.stack.enter_context(serving(service))
            make = lambda: HttpSource(service.url, "a job", outage_s=SOON_S)  # noqa: E731
        else:
            write_file(self.path, plans)
            make = lambda: FileSource(self.path, world_size=WORLD)  # noqa: E731
        if self.kind.startswith("fan out"):
            self.sources = [*fan_out(make)]
        else:
            self.sources = [make() for _ in range(WORLD)]
        for source in self.sources:
            self.stack.callback(source.close)
        return self

    def views(self, step: int, timeout_s: float = SOON_S) -> list[RankView]:
        return [source.view(step, rank, timeout_s) for rank, source in enumerate(self.sources)]

    def rejections(self, step: int, timeout_s: float = SOON_S) -> list[Exception]:
        """The error of each rank at ``step``."""
        errors: list[Exception] = []
        for rank, source in enumerate(self.sources):
            with pytest.raises((PlanError, EndOfPlans)) as caught:
                source.view(step, rank, timeout_s)
            assert "\n" not in str(caught.value)
            assert str(caught.value)
            errors.append(caught.value)
        return errors


@pytest.fixture(params=["file", "http", "fan out of file", "fan out of http"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    with ExitStack() as stack:
        yield Ranks(request.param, tmp_path / "plans.jsonl", stack)


@pytest.fixture(params=["http", "fan out of http"])
def waiting_ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    """Sources that may have to wait for a plan."""
    with ExitStack() as stack:
        yield Ranks(request.param, tmp_path / "plans.jsonl", stack)


def test_every_rank_gets_its_view_of_every_step_and_then_the_end(ranks: Ranks) -> None:
    plans = small_plans(3, WORLD, first=4)
    ranks.over(plans)
    for plan in plans:
        assert ranks.views(plan.step) == [view_of(plan, rank) for rank in range(WORLD)]
        for rank, source in enumerate(ranks.sources):
            source.acknowledge(plan.step, rank, digest(plan))
    assert [type(end) for end in ranks.rejections(7)] == [EndOfPlans] * WORLD


def test_no_plans_at_all(ranks: Ranks) -> None:
    """A file without plans is one whose planning was interrupted."""
    ends = ranks.over([]).rejections(0)
    if ranks.service is not None:
        assert [type(end) for end in ends] == [EndOfPlans] * WORLD
    else:
        assert [type(end) for end in ends] == [PlanError] * WORLD
        assert "plans.jsonl: no plans. Name another file, or plan again" in str(ends[0])


def test_a_failure_reaches_every_rank(ranks: Ranks) -> None:
    plans = small_plans(2, WORLD)
    ranks.over([plans[0], unsound(plans[1])])
    expected = "step|tokens"
    if ranks.service is not None:
        del ranks.service.plans[1]
        ranks.service.failure = (424, {"title": "The planner failed", "detail": "no GPU\nis left"})
        expected = "The planner failed: no GPU is left"
    ranks.views(0)
    for error in ranks.rejections(1):
        assert type(error) is PlanError
        assert ("breaks a rule of the format: tokens: " in str(error)) or (expected in str(error))


def test_closing_twice_and_asking_after_it(ranks: Ranks) -> None:
    ranks.over(small_plans(2, WORLD)).views(0)
    for source in ranks.sources:
        source.close()
        source.close()
    for rank, source in enumerate(ranks.sources):
        with pytest.raises(PlanError, match="closed"):
            source.view(1, rank, 1.0)


def test_a_plan_that_comes_late(waiting_ranks: Ranks) -> None:
    plans = small_plans(2, WORLD)
    ranks = waiting_ranks.over(plans[:1], ends=False)
    service = ranks.service
    assert service is not None
    ranks.views(0)
    for error in ranks.rejections(1, timeout_s=0.2):
        assert type(error) is PlanTimeout
        assert "within 0.2 s" in str(error)
    timer = threading.Timer(0.3, lambda: service.plans.update({1: plans[1]}))
    timer.start()
    assert ranks.views(1) == [view_of(plans[1], rank) for rank in range(WORLD)]
    timer.join()


def test_closing_ends_a_view_that_waits(waiting_ranks: Ranks) -> None:
    ranks = waiting_ranks.over([], ends=False)
    # Rank 0 last: a source that it closes during the request for all has failed for all.
    for rank, source in reversed(list(enumerate(ranks.sources))):
        errors: list[Exception] = []

        def request(
            source: PlanSource = source, rank: int = rank, errors: list[Exception] = errors
        ) -> None:
            try:
                source.view(0, rank, 600.0)
            except PlanError as error:
                errors.append(error)

        thread = threading.Thread(target=request)
        thread.start()
        time.sleep(0.3)
        assert thread.is_alive()
        source.close()
        thread.join(SOON_S)
        assert not thread.is_alive()
        assert "closed" in str(errors[0])


def test_acknowledgements_reach_the_service_once_for_each_rank(waiting_ranks: Ranks) -> None:
    plans = small_plans(3, WORLD)
    ranks = waiting_ranks.over(plans)
    assert ranks.service is not None
    ranks.service.passing = []
    measured = {1: 0.1 + 0.2, 3: 5e6}
    for plan in plans:
        ranks.views(plan.step)
        ranks.service.passing = ["503", "hang up"]
        for rank, source in enumerate(ranks.sources):
            source.acknowledge(plan.step, rank, digest(plan), measured_ms=measured.get(rank))
        ranks.service.passing = []
    for source in ranks.sources:
        source.close()
    assert sorted(ranks.service.acks, key=lambda ack: (ack["step"], ack["rank"])) == [
        {"step": plan.step, "rank": rank, "digest": digest(plan)}
        | ({"measured_ms": measured[rank]} if rank in measured else {})
        for plan in plans
        for rank in range(WORLD)
    ]


# Plan files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(b'"tokens":', b'"token":', 1), r"plans\.jsonl:1: .*missing"),
        (
            lambda text: text.replace(b'"gap":0.0', b'"gap":0.5', 1),
            r":1: digest: .* does not match",
        ),
        (lambda text: text + b"more\n", r"plans\.jsonl:3: not a JSON plan"),
        (lambda text: b"\xff" + text, r"plans\.jsonl:1: not UTF-8"),
        (lambda text: text[: len(text) // 4], r"plans\.jsonl:1: not a JSON plan"),
        (lambda text: text + text, r":3: step: 0 does not follow step 1"),
        (lambda text: b"{}\n" + text, r"plans\.jsonl:1: "),
    ],
)
def test_a_damaged_file(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path = write_file(tmp_path / "plans.jsonl", small_plans(2, WORLD))
    path.write_bytes(change(path.read_bytes()))

    def read() -> None:
        source = FileSource(path)
        try:
            source.view(0, 0, 1.0)
        finally:
            source.close()

    with pytest.raises(PlanError, match=message) as caught:
        read()
    assert "\n" not in str(caught.value)


def test_files_that_do_not_fit_the_job(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.jsonl: No such file"):
        FileSource(tmp_path / "none.jsonl")
    with pytest.raises(PlanError, match="Is a directory"):
        FileSource(tmp_path)
    path = write_file(tmp_path / "plans.jsonl", [small_plan(3, WORLD), small_plan(8, WORLD + 1)])
    source = FileSource(path, world_size=4)
    with pytest.raises(PlanError, match=":1: is planned for 3 ranks, the job has 4"):
        source.view(3, 0, 1.0)
    source.close()
    source = FileSource(path)
    with pytest.raises(PlanError, match=r"has no plan of step 5; its 2 steps are in 3 … 8"):
        source.view(5, 0, 1.0)
    with pytest.raises(PlanError, match="step 3: rank must be in 0 … 2, not 3"):
        source.view(3, 3, 1.0)
    with pytest.raises(PlanError, match=":2: is planned for 4 ranks, the job has 3"):
        source.view(8, 0, 1.0)
    source.close()


def test_the_tp_degrees_of_a_files_pipelines(tmp_path: Path) -> None:
    """Not those of strategies that were only considered: groups are made of these."""
    considered = (Considered(Strategy.parse("1×tp8"), 1.0, None),)
    plans = [
        replace(one_pipeline_plan(scheme, [9, 4], step=step), selection=considered)
        for step, scheme in enumerate((Scheme(tp=4), Scheme(tp=2, pp=2), Scheme(tp=4)))
    ]
    for written, degrees in ((plans, [2, 4]), ([small_plan(0, WORLD)], [1]), ([], [])):
        source = FileSource(write_file(tmp_path / "plans.jsonl", written))
        assert source.tensor_degrees() == degrees
        source.close()


# Fan-out


def fan_out(
    make: Callable[[], PlanSource], world: int = WORLD, store: Any = None
) -> list[FanOutSource]:
    """The source of each rank, which rank 0 feeds from what ``make`` returns."""
    store = store or new_store()
    return [FanOutSource(make, store, rank, world) for rank in range(world)]


@contextmanager
def serving_fanned(
    plans: list[Plan], **options: float
) -> Iterator[tuple[PlanService, list[FanOutSource]]]:
    """A service of plans and the ranks' sources, closed unless the test failed before."""
    with (
        serving(PlanService(plans)) as service,
        closing(HttpSource(service.url, "a job", **options)) as inner,
    ):
        sources = fan_out(lambda: inner)
        yield service, sources
        for source in sources:
            source.close()


def test_the_store_does_not_grow(tmp_path: Path) -> None:
    path = write_file(tmp_path / "plans.jsonl", small_plans(30, WORLD))
    store = new_store()
    sources = fan_out(lambda: FileSource(path), store=store)
    keys = store.num_keys()
    for step in range(30):
        for rank, source in enumerate(sources):
            source.view(step, rank, SOON_S)
        for rank in reversed(range(WORLD)):
            sources[rank].acknowledge(step, rank, None, 1.5 if rank % 2 else None)
        assert store.num_keys() <= keys + 1
    for source in sources:
        source.close()
    assert store.num_keys() == keys


def test_a_factory_that_fails_and_a_foreign_rank(tmp_path: Path) -> None:
    sources = fan_out(lambda: FileSource(tmp_path / "none.jsonl"), 2)
    for rank, source in enumerate(sources):
        with pytest.raises(PlanError, match="No such file"):
            source.view(0, rank, SOON_S)
    with pytest.raises(PlanError, match="rank 1 cannot return the view of rank 0"):
        sources[1].view(0, 0, SOON_S)
    with pytest.raises(ValueError, match=r"timeout_s: nan\. Give seconds"):
        sources[1].view(0, 1, float("nan"))
    for source in sources:
        source.close()


def test_a_source_left_in_the_middle_does_not_feed_the_next(tmp_path: Path) -> None:
    store = new_store()
    path = write_file(tmp_path / "plans.jsonl", small_plans(1, 2))
    first = fan_out(lambda: FileSource(path), 2, store)
    first[0].view(0, 0, SOON_S)  # rank 1 never reads its view
    other = write_file(tmp_path / "others.jsonl", [small_plan(0, 2, seed=1)])
    second = fan_out(lambda: FileSource(other), 2, store)
    for rank, source in enumerate(second):
        assert source.view(0, rank, SOON_S) == view_of(small_plan(0, 2, seed=1), rank)
    for source in first + second:
        source.close()


def test_rank_0_requests_each_plan_once_and_acknowledges_for_all() -> None:
    plans = small_plans(4, WORLD)
    with serving_fanned(plans) as (service, sources):
        for plan in plans:
            for rank, source in enumerate(sources):
                source.view(plan.step, rank, SOON_S)
            for rank in reversed(range(WORLD)):
                sources[rank].acknowledge(plan.step, rank, digest(plan))
        assert service.requests == 2 * len(plans)
    assert len(service.acks) == WORLD * len(plans)


def test_an_acknowledgement_that_fails_goes_with_the_next() -> None:
    plans = small_plans(2, WORLD)
    with serving_fanned(plans, outage_s=0.1) as (service, sources):
        for plan in plans:
            for rank, source in enumerate(sources):
                source.view(plan.step, rank, SOON_S)
        for rank in reversed(range(1, WORLD)):
            sources[rank].acknowledge(0, rank, digest(plans[0]), 1.5)
        service.passing = ["503"] * 50
        with pytest.raises(PlanError, match="503"):
            sources[0].acknowledge(0, 0, digest(plans[0]))
        service.passing = []
        assert service.acks == []
        for rank in reversed(range(WORLD)):
            sources[rank].acknowledge(1, rank, digest(plans[1]))
        got = [(ack["step"], ack["rank"], ack.get("measured_ms")) for ack in service.acks]
        assert got == [
            (0, 0, None),
            (0, 1, 1.5),
            (0, 2, 1.5),
            (1, 0, None),
            (1, 1, None),
            (1, 2, None),
        ]


def test_closing_passes_on_the_acknowledgements_that_came() -> None:
    """Rank 2 has died: what the others have done is not lost with it."""
    plan = small_plan(0, WORLD)
    with serving_fanned([plan]) as (service, sources):
        for rank, source in enumerate(sources):
            source.view(0, rank, SOON_S)
        for rank in (0, 1):
            sources[rank].acknowledge(0, rank, digest(plan))
        assert service.acks == []
    assert [ack["rank"] for ack in service.acks] == [0, 1]
