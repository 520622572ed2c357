"""``runtime.steps``: equal steps of a plan file, of a service's job and of plans made here."""

import gc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from consuming import HERE_S, control_group, prepare_tokens, threads
from plan_builder import write_file
from plan_service import PlanService, serving
from ranks import run_ranks
from service_process import serving as running
from small_plans import small_plan, small_plans, view_of
from training_ranks import write_small_job

from seqplan import digest, from_json, read_plans, runtime
from seqplan.runtime.errors import PlanError
from seqplan.runtime.sources import FileSource
from seqplan.runtime.sources.http_source import HttpSource

WORLD, STEPS = 2, 4

# What the ranks run


def every_step(
    rank: int, world_size: int, plans: Any, start_step: int = 0, **options: Any
) -> list[Any]:
    if plans == "file source":
        plans = FileSource(options.pop("path"))
    elif plans == "iterable":
        plans = read_plans(options.pop("path"))
    iterated = runtime.steps(
        plans,
        prepare=prepare_tokens,
        control_group=control_group(),
        start_step=start_step,
        timeout_s=HERE_S,
        **options,
    )
    ran = [(step.view, step.prepared) for step in iterated]
    with pytest.raises(StopIteration):
        next(iterated)
    assert not threads()
    return ran


def from_all(rank: int, world_size: int, path: Path, url: str, start_step: int) -> list[Any]:
    """The steps of each kind of plans."""
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (path, {}),
        (str(path), {}),
        ("file source", {"path": path}),
        ("iterable", {"path": path}),
        (url, {}),
        (url + "/", {"fan_out_ranks": world_size, "prefetch": 1, "ahead_s": 0.0}),
    ]
    return [every_step(rank, world_size, plans, start_step, **more) for plans, more in kinds]


def fanned_out(rank: int, world_size: int, url: str) -> list[Any]:
    return every_step(rank, world_size, url, fan_out_ranks=world_size)


def number_steps(plans: Any, start_step: int = 0) -> list[int]:
    iterated = runtime.steps(plans, prepare=prepare_tokens, start_step=start_step)
    return [step.view.step for step in iterated]


def test_gaps_and_starts_outside_the_plans_are_rejected(tmp_path: Path) -> None:
    plans = small_plans(3, 1)
    path = write_file(tmp_path / "plans.jsonl", plans)
    for source in (plans, path):
        assert number_steps(source, 1) == [1, 2]
        assert number_steps(source, 3) == []
        with pytest.raises(ValueError, match=r"start_step: -1\. Give 0 or more"):
            number_steps(source, -1)
        with pytest.raises(TypeError, match=r"start_step: '1'\. Give the whole number"):
            number_steps(source, "1")  # type: ignore[arg-type]
    assert number_steps(plans[1:]) == [1, 2]
    for given, start, message in (
        (plans, 4, r"step 4: the plans end with step 2\. Start at 3 at most"),
        (path, 4, "has no plan of step 4; its 3 steps are in 0 … 2"),
        ([plans[0], plans[2]], 0, r"step 1: has no plan, the next one is of step 2\. Give each"),
        ([plans[0], plans[2]], 1, "step 1: has no plan, the next one is of step 2"),
        (plans[2:], 1, r"step 1: has no plan, the first is of step 2\. Give the plans from there"),
    ):
        with pytest.raises(PlanError, match=message):
            number_steps(given, start)


def measured_steps(rank: int, world_size: int, url: str) -> None:
    steps = runtime.steps(url, prepare=prepare_tokens, control_group=control_group())
    for step in steps:
        if step.view.step != 1:
            steps.acknowledge(step.view.step, 10.0 * step.view.step + rank)
            with pytest.raises(ValueError, match="is acknowledged already"):
                steps.acknowledge(step.view.step)
    steps.acknowledge(1)  # it is, since the step after it was requested


def left_loop(rank: int, world_size: int, url: str) -> int:
    for step in runtime.steps(url, prepare=prepare_tokens, control_group=control_group()):
        if step.view.step == 1:
            break
    gc.collect()
    return len(threads())


def reject_all(rank: int, world_size: int, path: Path, url: str) -> list[str]:
    """Messages for a file that one rank lacks, an object that is no plan, and a missing job."""
    messages = []
    for plans in (
        path if rank == 0 else path.with_name("none.jsonl"),
        [small_plan(0, world_size), 7],
        url,
    ):
        with pytest.raises(PlanError) as raised:
            list(runtime.steps(plans, prepare=prepare_tokens, control_group=control_group()))
        messages.append(str(raised.value))
    return messages


# The tests


def test_file_url_and_iterable_give_equal_steps(tmp_path: Path) -> None:
    plans = small_plans(6, WORLD)
    path = write_file(tmp_path / "plans.jsonl", plans)
    with serving(PlanService(plans)) as service:
        url = f"{service.url}v1/jobs/a%20job"
        of_ranks = run_ranks(from_all, WORLD, path, url, 2)
    for rank, of_kinds in enumerate(of_ranks):
        views = [view_of(plan, rank) for plan in plans[2:]]
        for ran in of_kinds:
            assert ran == [(view, prepare_tokens(view)) for view in views]
    # Twice for each rank: once for itself, once by the first rank.
    assert len(service.acks) == 2 * WORLD * len(plans[2:])


def test_real_service_gives_the_steps_of_its_plans(tmp_path: Path) -> None:
    job = write_small_job(tmp_path, WORLD, STEPS)
    with running("--job", job, command="sidecar") as served:
        url = f"{served.url}/v1/jobs/job"
        by_url = run_ranks(every_step, WORLD, url)
        texts = [served.send("GET", f"/v1/jobs/job/plans/{n}").body.decode() for n in range(STEPS)]
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [STEPS - 1] * WORLD
    plans = [from_json(text) for text in texts]
    path = write_file(tmp_path / "plans.jsonl", plans)
    assert by_url == run_ranks(every_step, WORLD, path) == run_ranks(every_step, WORLD, plans)
    assert [view.digest for view, _ in by_url[0]] == [digest(plan) for plan in plans]


def test_job_without_its_lost_rank_runs_on_the_ranks_that_are_left(tmp_path: Path) -> None:
    """Planned for three ranks, of which 0 and 2 are left: ranks 0 and 1 of torch.distributed."""
    job = write_small_job(tmp_path, 3, STEPS, 'slowdown = [1.0, "lost", 1.3]\n')
    with running("--job", job, command="sidecar") as served:
        url = f"{served.url}/v1/jobs/job"
        by_url = run_ranks(every_step, WORLD, url)
        assert served.ok("GET", "/v1/jobs/job/progress")["slowest"] == STEPS - 1
        assert run_ranks(fanned_out, WORLD, url) == by_url
        texts = [served.send("GET", f"/v1/jobs/job/plans/{n}").body.decode() for n in range(STEPS)]
        with (
            closing(HttpSource(served.url, "job", world_size=3)) as source,
            pytest.raises(PlanError, match="rank 1 is lost: the job is planned without it"),
        ):
            source.view(0, 1, HERE_S)
        fetched: list[str] = []
        source = HttpSource(served.url, "job", world_size=WORLD)
        with closing(source):
            request = source._plans.request
            source._plans.request = lambda *of: (fetched.append(of[1]), request(*of))[1]
            assert [source.view(step, 1, HERE_S) for step in range(STEPS)] == [
                view for view, _ in by_url[1]
            ]
        # Plans count rank 1 as 2. The whole plan, which has the numbers, is read once.
        assert [path.count("/ranks/") for path in fetched] == [1, 0, *[1] * (STEPS - 1)]
    plans = [from_json(text) for text in texts]
    path = write_file(tmp_path / "plans.jsonl", plans)
    assert by_url == run_ranks(every_step, WORLD, plans)
    assert [view.digest for view, _ in by_url[1]] == [digest(plan) for plan in plans]
    with pytest.raises(PlanError, match="for 3 ranks, of which 2 are left, the job has 1"):
        next(runtime.steps(path, prepare=prepare_tokens))


def test_steps_are_acknowledged_once_with_their_times() -> None:
    with serving(PlanService(small_plans(4, WORLD))) as service:
        run_ranks(measured_steps, WORLD, f"{service.url}v1/jobs/a%20job")
    acks = {(ack["rank"], ack["step"]): ack.get("measured_ms") for ack in service.acks}
    assert acks == {
        (rank, step): None if step == 1 else 10.0 * step + rank
        for rank in range(WORLD)
        for step in range(4)
    }
    assert len(service.acks) == len(acks)


def test_a_loop_that_is_left_closes_and_acknowledges_no_more() -> None:
    with serving(PlanService(small_plans(4, WORLD))) as service:
        assert run_ranks(left_loop, WORLD, f"{service.url}v1/jobs/a%20job") == [0] * WORLD
    assert sorted((ack["rank"], ack["step"]) for ack in service.acks) == [(0, 0), (1, 0)]


def test_token_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(PlanService(small_plans(1, 1), token="let me in")) as service:
        url = f"{service.url}v1/jobs/a%20job"
        with pytest.raises(PlanError, match=r"step 0 of rank 0: Who are you\?$"):
            next(runtime.steps(url, prepare=prepare_tokens))
        monkeypatch.setenv("SEQPLAN_TOKEN", "let me in")
        assert len(list(runtime.steps(url, prepare=prepare_tokens))) == 1
        monkeypatch.setenv("SEQPLAN_TOKEN", "another")
        assert len(list(runtime.steps(url, prepare=prepare_tokens, token="let me in"))) == 1


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ("none.jsonl", r"^none\.jsonl: No such file or directory\. Check the path$"),
        (Path("none.jsonl"), r"^none\.jsonl: No such file or directory\. Check the path$"),
        ("http://host:1", r"^http://host:1: a job's URL must be http://HOST:PORT/v1/jobs/JOB$"),
        ("http://host:1/v1/jobs/", "^http://host:1/v1/jobs/: a job's URL must be "),
        ("http://host:1/v1/jobs/a/plans", "^http://host:1/v1/jobs/a/plans: a job's URL must be "),
        ("ftp://host/v1/jobs/a", "^ftp://host/v1/jobs/a: a job's URL must be http://"),
        ([7], r"^rank 0: step 0: must be a Plan, not int$"),
    ],
)
def test_bad_input_is_one_line(plans: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        next(runtime.steps(plans, prepare=prepare_tokens))


@pytest.mark.parametrize("order", [(0, 0), (1, 0)])
def test_steps_out_of_order_are_rejected(order: tuple[int, int]) -> None:
    plans = small_plans(2, 1)
    steps = runtime.steps([plans[number] for number in order], prepare=prepare_tokens)
    assert next(steps).view.step == order[0]
    with pytest.raises(PlanError, match=rf"step 0 follows step {order[0]}\. Give each step once"):
        next(steps)


def test_other_objects_are_rejected() -> None:
    plans: Any = 7
    with pytest.raises(
        TypeError, match=r"^plans must be a file, .* or an iterable of plans, not int$"
    ):
        runtime.steps(plans, prepare=prepare_tokens)
    with pytest.raises(ValueError, match="2 ranks need one to agree"):
        runtime.steps([], prepare=prepare_tokens, rank=0, world_size=2)


def test_bad_input_ends_every_rank(tmp_path: Path) -> None:
    path = write_file(tmp_path / "plans.jsonl", small_plans(2, WORLD))
    with serving(PlanService([])) as service:
        of_ranks = run_ranks(reject_all, WORLD, path, f"{service.url}v1/jobs/other")
    absent = tmp_path / "none.jsonl"
    for missing, no_plan, no_job in of_ranks:
        assert missing == f"rank 1: {absent}: No such file or directory. Check the path"
        assert no_plan == "rank 0: step 1: must be a Plan, not int"
        assert no_job.startswith("rank 0: http://127.0.0.1:")
        assert "/jobs/other: step 0 of rank 0: Not found" in no_job
        assert "\n" not in no_job
