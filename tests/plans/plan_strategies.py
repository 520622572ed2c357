"""Hypothesis strategies for sound plans: any degrees, regrouped ranks, micro-steps, idle ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from seqplan.plans.groups import process_groups
from seqplan.plans.plan import Considered, MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.recomputation import MODES
from seqplan.plans.schedule import schedule
from seqplan.plans.scheme import Scheme, Strategy


@dataclass(frozen=True)
class Cost:
    """Coefficients of one scheme (ms/token², ms/token, ms) and its MaxLen (tokens)."""

    a: float
    b: float
    c: float
    max_len: int
    kept_share: float = 1.0
    b_shared: float = 0.0

    def find_mode(self, name: str | None, /) -> Cost:
        """All modes cost the same."""
        return self


@dataclass(frozen=True)
class Costed:
    """A plan with the costs it was priced with."""

    plan: Plan
    costs: Mapping[Scheme, Cost]


_LENGTHS = st.one_of(st.integers(1, 12), st.integers(1, 300))
_TIMES = st.floats(0, 10, allow_nan=False).map(lambda value: round(value, 3))


@dataclass
class _Block:
    """Ranks that keep their tp index and stage; pipelines take any of its sp slots.

    ``ranks[slot][stage][tp]``.
    """

    tp: int
    pp: int
    ranks: list[list[list[int]]]

    def pipeline_ranks(self, slots: list[int]) -> tuple[int, ...]:
        return tuple(
            rank for stage in range(self.pp) for slot in slots for rank in self.ranks[slot][stage]
        )


@st.composite
def costed_plans(draw: st.DrawFn, *, micro_steps: bool | None = None) -> Costed:
    """A sound plan of a few dozen ranks at most; ``micro_steps`` forces or forbids micro-steps."""
    in_lockstep = draw(st.booleans()) if micro_steps is None else micro_steps
    blocks, world = draw(_blocks(draw(st.integers(1, 4)) if in_lockstep else None))
    chosen: list[tuple[Scheme, tuple[int, ...], int | None]] = []
    if in_lockstep:
        for number in range(draw(st.integers(1, 3))):
            before = len(chosen)
            for block in blocks:
                chosen += draw(_disjoint(block, number))
            if len(chosen) == before:
                block = blocks[0]
                chosen.append((Scheme(block.tp, block.pp), block.pipeline_ranks([0]), number))
    else:
        for _ in range(draw(st.integers(0, 5))):
            block = draw(st.sampled_from(blocks))
            free = draw(st.permutations(range(len(block.ranks))))
            chosen.append(_take(block, draw(_degrees(len(free))), free, None))
    return draw(_filled(chosen, world))


def plans(*, micro_steps: bool | None = None) -> st.SearchStrategy[Plan]:
    """Sound plans without their costs."""
    return costed_plans(micro_steps=micro_steps).map(lambda costed: costed.plan)


@st.composite
def _blocks(draw: st.DrawFn, stages: int | None) -> tuple[list[_Block], int]:
    """Ranks of several layouts, all of this many ``stages`` if that is given."""
    shapes = draw(
        st.lists(
            st.tuples(
                st.integers(1, 3),
                st.integers(1, 4) if stages is None else st.just(stages),
                st.integers(1, 7),
            ),
            min_size=1,
            max_size=3,
        )
    )
    spare = draw(st.integers(0, 2))
    world = sum(tp * pp * slots for tp, pp, slots in shapes) + spare
    order = iter(draw(st.permutations(range(world))))
    blocks = [
        _Block(
            tp, pp, [[[next(order) for _ in range(tp)] for _ in range(pp)] for _ in range(slots)]
        )
        for tp, pp, slots in shapes
    ]
    return blocks, world


@st.composite
def _degrees(draw: st.DrawFn, slots: int) -> tuple[int, int]:
    """(ulysses, ring) that fit into ``slots``."""
    ulysses = draw(st.integers(1, slots))
    return ulysses, draw(st.integers(1, slots // ulysses))


def _take(
    block: _Block, degrees: tuple[int, int], free: list[int], number: int | None
) -> tuple[Scheme, tuple[int, ...], int | None]:
    ulysses, ring = degrees
    scheme = Scheme(block.tp, block.pp, ulysses, ring)
    return scheme, block.pipeline_ranks(list(free[: scheme.sp])), number


@st.composite
def _disjoint(
    draw: st.DrawFn, block: _Block, number: int
) -> list[tuple[Scheme, tuple[int, ...], int | None]]:
    """Pipelines of one micro-step: no slot is used twice."""
    free = draw(st.permutations(range(len(block.ranks))))
    chosen = []
    while free and draw(st.booleans()):
        degrees = draw(_degrees(len(free)))
        chosen.append(_take(block, degrees, free, number))
        free = free[degrees[0] * degrees[1] :]
    return chosen


@st.composite
def _filled(
    draw: st.DrawFn, chosen: list[tuple[Scheme, tuple[int, ...], int | None]], world: int
) -> Costed:
    """Sequences, costs and times for pipelines that are already placed."""
    schemes = sorted({scheme for scheme, _, _ in chosen})
    rates = {scheme: draw(st.tuples(_TIMES, _TIMES, _TIMES)) for scheme in schemes}
    contents: list[list[list[int]]] = []  # per pipeline, per micro-batch: lengths
    for _, _, number in chosen:
        most = 4 if number is None else 1
        batch = st.lists(_LENGTHS, min_size=1, max_size=5)
        contents.append(draw(st.lists(batch, max_size=most)))
    lengths = [length for batches in contents for batch in batches for length in batch]
    order = draw(st.permutations(range(len(lengths))))  # packed order → position
    position = iter(order)
    stored = [0] * len(lengths)
    modes = draw(st.sampled_from([(None,), (*MODES, "elementwise+0.5", "full+1")]))
    pipelines = []
    largest = dict.fromkeys(schemes, 0)
    for (scheme, ranks, number), batches in zip(chosen, contents, strict=True):
        a, b, c = rates[scheme]
        slowdown = draw(st.sampled_from([1.0, 1.0, 1.3, 2.0]))
        micro_batches = []
        for batch in batches:
            at = tuple(next(position) for _ in batch)
            for where, length in zip(at, batch, strict=True):
                stored[where] = length
            padded = scheme.pad_micro_batch(batch)
            largest[scheme] = max(largest[scheme], padded)
            work = sum(a * length**2 + b * length for length in batch)
            cost = round(slowdown * (work + c), 3)
            mode = draw(st.sampled_from(modes))
            micro_batches.append(MicroBatch(at, sum(batch), padded, cost, mode))
        times = [batch.cost_ms for batch in micro_batches]
        predicted = round(sum(times) + (scheme.pp - 1) * max(times, default=0.0), 3)
        pipelines.append(
            PlannedPipeline(scheme, ranks, tuple(micro_batches), predicted, number, slowdown)
        )
    used = {rank for _, ranks, _ in chosen for rank in ranks}
    makespan = round(schedule(pipelines).makespan_ms, 3)
    predicted = makespan + draw(st.sampled_from([0.0, 0.5, 12.25]))
    bound = round(predicted * draw(st.floats(0.5, 1)), 3)
    if bound == 0:
        bound = predicted
    strategy = Strategy.from_counts({scheme: world // scheme.gpus for scheme in schemes[:1]})
    ids = draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(stored), max_size=len(stored)))
    tokens = sum(stored)
    sync_ms = draw(st.none() | _TIMES)
    plan = Plan(
        step=draw(st.integers(0, 10**9)),
        provenance=Provenance(
            draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
            draw(st.integers(0, 2**63 - 1)),
            "sha256:profile",
            draw(st.none() | st.just("sha256:proposal")),
        ),
        world_size=world,
        ids=tuple(ids),
        lengths=tuple(stored),
        tokens=tokens,
        loss_tokens=draw(st.sampled_from([tokens - len(stored), 0, tokens])),
        pipelines=tuple(pipelines),
        idle_ranks=tuple(sorted(set(range(world)) - used)),
        groups=process_groups(pipelines),
        predicted_ms=predicted,
        lower_bound_ms=bound,
        gap=max(0.0, predicted / bound - 1) if bound else 0.0,
        selection=(
            Considered(strategy, bound, predicted, sync_ms),
            Considered(Strategy(()), draw(_TIMES), None),
        ),
        sync_ms=sync_ms,
    )
    costs = {scheme: Cost(*rates[scheme], max_len=largest[scheme]) for scheme in schemes}
    return Costed(plan, costs)
