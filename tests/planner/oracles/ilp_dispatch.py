"""The published dispatch problem solved exactly (Hydraulis, arXiv 2412.07894, Eq. 3) with CBC."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulp

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.planner.systems.programs.cbc import minimise
from seqplan.planner.systems.programs.greedy_dispatch import dispatch_bound_ms, greedy_dispatch


@dataclass(frozen=True)
class IlpDispatch:
    """Positions per pipeline, class by class; the slowest bound (ms), and a proven bound on it."""

    pipelines: tuple[tuple[int, ...], ...]
    objective_ms: float
    lower_bound_ms: float

    @property
    def optimal(self) -> bool:
        """Whether the assignment is proven optimal, up to the solver's tolerance."""
        return self.objective_ms <= self.lower_bound_ms * (1 + 1e-6)


def ilp_dispatch(
    classes: Sequence[PipelineClass], batch: Batch, *, time_limit_s: float = 60.0
) -> IlpDispatch:
    """Minimize the slowest pipeline's bound over all assignments of sequences to pipelines.

    A pipeline's bound is Σ(a·l² + b·l) + V_min·c + (pp − 1)·(w(longest) + c), 0 when it is empty;
    V_min is an integer of at least tokens/MaxLen. Where CBC finds nothing in time, the greedy
    assignment is returned. ``ValueError`` when a sequence fits no pipeline.
    """
    greedy = greedy_dispatch(classes, batch, trials=16, order="descending")
    alone = [pipeline for pipeline in classes for _ in range(pipeline.count)]
    problem = pulp.LpProblem("dispatch", pulp.LpMinimize)
    slowest = problem.add_variable("slowest", lowBound=0)
    problem += slowest
    takes = _pipelines(problem, slowest, alone, batch)
    for i in range(len(batch.lengths)):
        able = [take[i] for take in takes if i in take]
        problem += pulp.lpSum(able) == 1
    answer = minimise(problem, time_limit_s)
    solutions = [greedy]
    if answer.has_solution:
        solutions.append([[i for i, x in take.items() if x.value() > 0.5] for take in takes])
    objective, pipelines = min((_slowest(alone, batch, some), some) for some in solutions)
    trivial = min(
        dispatch_bound_ms(pipeline, [batch.longest])
        for pipeline in alone
        if batch.longest <= pipeline.capacity
    )
    bound = min(max(answer.bound, trivial), objective)
    return IlpDispatch(tuple(tuple(part) for part in pipelines), objective, bound)


def _pipelines(
    problem: pulp.LpProblem, slowest: pulp.LpVariable, alone: Sequence[PipelineClass], batch: Batch
) -> list[dict[int, pulp.LpVariable]]:
    """One pipeline's constraints each; whether it takes a sequence, for those it can hold."""
    takes = []
    for p, pipeline in enumerate(alone):
        able = [i for i, length in enumerate(batch.lengths) if length <= pipeline.capacity]
        take = {i: problem.add_variable(f"x_{i}_{p}", cat="Binary") for i in able}
        work = {i: batch.lengths[i] * (pipeline.a * batch.lengths[i] + pipeline.b) for i in able}
        padded = {i: -(-batch.lengths[i] // pipeline.unit) * pipeline.unit for i in able}
        micro_batches = problem.add_variable(f"v_{p}", lowBound=0, cat="Integer")
        longest = problem.add_variable(f"longest_{p}", lowBound=0)  # w(longest) + c, 0 when empty
        problem += (
            pulp.lpSum(work[i] * take[i] for i in able)
            + pipeline.c * micro_batches
            + (pipeline.pp - 1) * longest
            <= slowest
        )
        problem += (
            pulp.lpSum(padded[i] * take[i] for i in able) <= pipeline.capacity * micro_batches
        )
        for i in able:
            problem += (work[i] + pipeline.c) * take[i] <= longest
        takes.append(take)
    return takes


def _slowest(
    alone: Sequence[PipelineClass], batch: Batch, pipelines: Sequence[Sequence[int]]
) -> float:
    return max(
        dispatch_bound_ms(pipeline, [batch.lengths[i] for i in part])
        for pipeline, part in zip(alone, pipelines, strict=True)
    )
