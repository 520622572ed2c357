"""Plans with their measured times, from files, a service or a store: records of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqplan.api.cli.framework.output import print_note
from seqplan.api.cli.framework.server_options import fetch_plan, fetch_profile
from seqplan.api.loggers.step_metrics import StepMetrics
from seqplan.costs.fit.measurements import MeasurementError, read_measurements
from seqplan.costs.profile import Profile
from seqplan.plans.format.codec import from_json
from seqplan.plans.format.plan_file import read_plans
from seqplan.plans.plan import Plan
from seqplan.plans.schedule import list_idle_ranks, predict_rank_times

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from seqplan.api.client.client import Client
    from seqplan.api.store.rows import JobOutline


@dataclass(frozen=True)
class _MeasuredStep:
    """A plan, its planning time and the time of its slowest measured rank (ms).

    Ranks without work are left out.
    """

    plan: Plan
    planning_ms: float | None
    measured_ms: float | None
    ranks_measured: int


def read_files(plans: str, measurements: Path | None, profile: Profile | None) -> list[StepMetrics]:
    """Read records from a plan file and a file of measured times.

    ``MeasurementError`` for a time of a step or rank that the plans do not have.
    """
    times: dict[int, dict[int, float]] = {}
    for measured in [] if measurements is None else read_measurements(measurements, print_note):
        times.setdefault(measured.step, {})[measured.rank] = measured.measured_ms
    steps = []
    for plan in read_plans(plans):
        by_rank = times.pop(plan.step, {})
        if foreign := [rank for rank in by_rank if not 0 <= rank < plan.world_size]:
            raise MeasurementError(
                f"{measurements}: step {plan.step}: measured on rank {foreign[0]}, its plan has "
                f"{plan.world_size}. Name the times of these plans"
            )
        times_ms = [by_rank[rank] for rank in predict_rank_times(plan) if rank in by_rank]
        steps.append(_MeasuredStep(plan, None, max(times_ms, default=None), len(times_ms)))
    if times:
        raise MeasurementError(
            f"{measurements}: step {min(times)} is not in {plans}. Name the times of these plans"
        )
    return _records(steps, [] if profile is None else [profile])


def fetch_job(client: Client, job: str, after: int, profile: Profile | None) -> list[StepMetrics]:
    """Fetch records of a service's job; without ``profile``, by those that it was planned by."""
    profiles = [profile] if profile is not None else list(fetch_profiles(client, job))
    return _records(_fetch_steps(client, job, after), profiles)


def fetch_profiles(client: Client, job: str) -> Iterator[Profile]:
    """Fetch the profile of each proposal that a job was planned by."""
    for proposal in dict.fromkeys(each.proposal for each in client.get_revisions(job).items):
        yield fetch_profile(client, proposal, f"job {job}")


def _fetch_steps(client: Client, job: str, after: int) -> Iterator[_MeasuredStep]:
    for step in client.items(client.list_steps, job, cursor=after):
        if (plan := fetch_plan(client, job, step.step)) is not None:
            yield _MeasuredStep(plan, step.planning_ms, step.measured_ms, step.ranks_measured)


def read_job(
    connection: Connection, job: JobOutline, after: int, profile: Profile | None
) -> list[StepMetrics]:
    """Read records of a store's job; without ``profile``, by those that it was planned by."""
    profiles = [profile] if profile is not None else list(_read_profiles(connection, job.id))
    return _records(_read_steps(connection, job.id, after), profiles)


def _read_profiles(connection: Connection, job: str) -> Iterator[Profile]:
    """Read the profile of each proposal that a job was planned by."""
    from seqplan.api.store.rows import JobRow, ProposalRow, get
    from seqplan.api.store.tables.proposals import ready_document
    from seqplan.api.store.tables.revisions import list_revisions

    row = get(connection, JobRow, job)
    revisions = [] if row is None else list_revisions(connection, row)
    for key in dict.fromkeys(revision.proposal for revision in revisions):
        if (proposal := get(connection, ProposalRow, key)) is not None:
            yield ready_document(proposal).profile


def _read_steps(connection: Connection, job: str, after: int) -> Iterator[_MeasuredStep]:
    from seqplan.api.store.tables.plans import iterate_planned, leave_out_idle_ranks

    for planned, line in iterate_planned(connection, job, after):
        plan = from_json(line, strict=False, origin=f"step {planned.step}")
        idle = {planned.step: list_idle_ranks(plan)}
        (step,) = leave_out_idle_ranks(connection, job, [planned], idle)
        yield _MeasuredStep(plan, step.planning_ms, step.measured_ms, step.ranks_measured)


def _records(steps: Iterable[_MeasuredStep], profiles: Sequence[Profile]) -> list[StepMetrics]:
    """Compute the records. ``ValueError`` for a plan that was made by none of some profiles."""
    records = []
    for step in steps:
        made_by = step.plan.provenance.profile
        profile = next((one for one in profiles if one.with_digest(made_by) is not None), None)
        if profiles and profile is None:
            raise ValueError(
                f"profile {profiles[0].name}: step {step.plan.step} was planned by another one, "
                f"{made_by[:19]}. Name that one, or leave --profile out"
            )
        records.append(
            StepMetrics.from_plan(
                step.plan,
                profile=profile,
                planning_ms=step.planning_ms,
                measured_ms=step.measured_ms,
                ranks_measured=step.ranks_measured,
            )
        )
    return records
