"""Sound plans of a few ranks and short sequences, for tests of what brings them to the ranks."""

from dataclasses import replace

from plan_builder import plan_of

from seqplan import Plan, RankView, Scheme, digest, rank_view
from seqplan.plans.lint import lint
from seqplan.plans.plan import MicroBatch, PlannedPipeline, Provenance


def small_plan(step: int, world_size: int, *, seed: int = 0) -> Plan:
    """One pipeline over all ranks (ulysses) and one on each rank; ids and lengths by the step."""
    lengths = tuple(5 + (3 * step + 7 * n + seed) % 30 for n in range(2 * world_size + 2))
    ids = tuple(100 * step + n for n in range(len(lengths)))
    wide = _pipeline(Scheme(ulysses=world_size), tuple(range(world_size)), (0, 1), lengths)
    narrow = [
        _pipeline(Scheme(), (rank,), (2 + 2 * rank, 3 + 2 * rank), lengths)
        for rank in range(world_size)
    ]
    provenance = Provenance("1", seed, "sha256:p", None)
    fields = {"step": step, "ids": ids, "provenance": provenance}
    plan = plan_of((wide, *narrow), lengths, 4.0, gap=0.0, **fields)
    assert not lint(plan, None)
    return plan


def small_plans(steps: int, world_size: int, *, first: int = 0) -> list[Plan]:
    return [small_plan(step, world_size) for step in range(first, first + steps)]


def view_of(plan: Plan, rank: int) -> RankView:
    """The view as every source gives it: with the plan's digest."""
    return rank_view(plan, rank, digest=digest(plan))


def unsound(plan: Plan) -> Plan:
    return replace(plan, tokens=plan.tokens + 1)


def _pipeline(
    scheme: Scheme, ranks: tuple[int, ...], at: tuple[int, ...], lengths: tuple[int, ...]
) -> PlannedPipeline:
    held = [lengths[position] for position in at]
    batch = MicroBatch(at, sum(held), scheme.pad_micro_batch(held), 2.0)
    return PlannedPipeline(scheme, ranks, (batch,), 2.0)
