"""Micro-steps whose groups all run in one recomputation mode, as if there were no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import ceil, inf

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    Sequences,
    fewest_micro_steps,
    fewest_of_one_degree,
    in_stages_ms,
    micro_steps_bound_ms,
    one_degree_bound_ms,
    stage_class,
)
from seqplan.planner.lockstep.filling.busy_ranks import BusyRanks, Group
from seqplan.planner.lockstep.filling.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filling.filler import MicroStepsFiller
from seqplan.planner.lockstep.filling.one_degree import plan_one_degree
from seqplan.planner.lockstep.filling.search import SearchSettings, TargetFiller, search
from seqplan.planner.lockstep.filling.two_micro_steps import TwoMicroSteps
from seqplan.planner.lockstep.micro_steps import MicroStep, MicroSteps
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.scheme import Scheme

SETTINGS = SearchSettings(extra=1, improved=6, fills=200, deepened=2, near=1.01, deep_fills=800)
"""Measured on 61 steps in lockstep (7B to 32B, 8 to 64 GPUs, 32K and 128K): ``extra`` 2 and
``deepened`` 3 change none and take 1.1 to 1.2 times the CPU. ``extra`` 0 slows one by 0.4 %,
``improved`` 3 one by 0.9 %, ``deepened`` 1 one by 0.5 %, ``deep_fills`` 400 one by 1 % and
``fills`` 100 one by 0.1 %. ``improved`` 12 shortens one by 1.3 % and takes 1.2 to 1.3 times the
CPU."""

PROMISING = 1.03
"""With stages, starts that take this much longer than the best known one are not improved: more
numbers of micro-steps are tried, and a longer micro-step costs the more."""

LAID_OUT = 6
"""Of the best found, how many are laid out, which may change their order."""


def plan_one_mode(
    batch: Batch,
    models: Sequence[SchemeModel],
    bounded: tuple[PipelineClass, ...],
    gpus: int,
    multiple: int,
) -> MicroSteps | None:
    """Find good micro-steps of one recomputation mode; the bound is over all of ``bounded``.

    For each number of micro-steps from the fewest that memory allows, in multiples of ``multiple``,
    and each smallest degree: all micro-steps with one common target, the least that works; then,
    from the best of these, targets are changed one against the others while the sum falls. (Larger
    groups than needed can be better if memory is tight: they mix long and short sequences.)
    Micro-steps that waste the least time one by one join them, and the best of the best numbers are
    searched further. Micro-steps of one degree throughout are tried first, which is all if there is
    no other. Then sequences of equal groups are assigned evenly, and groups split, widened or given
    a sequence of another micro-step until no rank is idle, or sequences are too few for that. None
    if the batch does not fit.
    """
    stages = models[0].scheme.pp
    ranks = gpus // stages
    ordered = _one_of_each_size(models, batch, ranks)
    classes = tuple(stage_class(model) for model in ordered)
    if batch.longest > max((c.capacity for c in classes if c.gpus <= ranks), default=0):
        return None
    tried, bound_ms = _search(classes, bounded, batch, ranks, stages, multiple)
    if multiple > 1:  # as well as is best without, and then as many more as the multiple requires
        tried += _search(classes, bounded, batch, ranks, stages, 1)[0]
    busy = BusyRanks(classes, batch.lengths, ranks)
    plans = busy.in_multiples([filled.groups(batch) for filled in tried], multiple)
    laid_out = [_laid_out(busy, classes, micro_steps) for micro_steps in plans]
    best = min(
        laid_out,
        key=lambda micro_steps: in_stages_ms(
            [micro_step.time_ms for micro_step in micro_steps], stages
        ),
    )
    of_size = [model for model in models if model not in ordered]
    every = (*ordered, *drop_dominated({model.scheme: model for model in of_size}).values())
    every_class = tuple(stage_class(model) for model in every)
    best = tuple(_choose_schemes(micro_step, every_class, batch) for micro_step in best)
    schemes = tuple(model.scheme for model in every)
    unbounded = MicroSteps(every_class, schemes, bounded, ranks, best, 0.0)
    return unbounded.with_bound(bound_ms)


def _choose_schemes(
    micro_step: MicroStep, classes: Sequence[PipelineClass], batch: Batch
) -> MicroStep:
    """Run each group of a micro-step on the fastest scheme of its size.

    Transfers of a ring take less of long sequences, Ulysses' less of short ones.
    """
    groups, slowest_ms = [], 0.0
    for k, positions in micro_step.groups:
        lengths = [batch.lengths[i] for i in positions]
        times = [
            (other.choose_mode(lengths).micro_batch_ms(lengths), place)
            for place, other in enumerate(classes)
            if other.gpus == classes[k].gpus and sum(map(other.pad, lengths)) <= other.capacity
        ]
        time_ms, fastest = min(times)
        groups.append((fastest, positions))
        slowest_ms = max(slowest_ms, time_ms)
    return MicroStep(tuple(groups), slowest_ms)


def _one_of_each_size(models: Sequence[SchemeModel], batch: Batch, ranks: int) -> list[SchemeModel]:
    """Choose a scheme for each number of GPUs, largest first: the fastest on the batch that fits.

    Those that hold its longest sequence go before others of their size. Timed as if all groups were
    equal: their work, spread over the groups, and the overhead of as many micro-steps as tokens
    need.
    """
    by_size: dict[int, list[SchemeModel]] = {}
    for model in drop_dominated({model.scheme: model for model in models}).values():
        by_size.setdefault(model.scheme.gpus, []).append(model)

    def cost(model: SchemeModel) -> tuple[int, float, Scheme]:
        held = batch.distinct <= model.max_sequence
        group = stage_class(model)
        groups = max(1, ranks // group.gpus)
        counts = batch.multiplicity[held]
        work_ms = float(group.work_ms(batch.distinct)[held] @ counts)
        tokens = int(group.padded(batch.distinct)[held] @ counts)
        micro_steps = max(1, ceil(tokens / (group.capacity * groups)))
        return -int(held.sum()), work_ms / groups + micro_steps * group.c, model.scheme

    return [min(by_size[size], key=cost) for size in sorted(by_size, reverse=True)]


def _search(
    classes: Sequence[PipelineClass],
    bounded: Sequence[PipelineClass],
    batch: Batch,
    ranks: int,
    stages: int,
    multiple: int,
) -> tuple[list[FilledMicroSteps], float]:
    """Search numbers of micro-steps from the fewest on: some of the best there are.

    And a lower bound over all plans (ms).
    """
    of_one_degree: list[FilledMicroSteps] = []
    if stages == 1:
        of_one_degree, one_bound = _of_one_degree(classes, batch, ranks, multiple)
        if len(bounded) == 1 and of_one_degree:
            return of_one_degree, one_bound
    sequences = Sequences(batch.distinct, batch.multiplicity)
    fillers = [
        TargetFiller(MicroStepsFiller(classes[:last], sequences, ranks, stages=stages))
        for last in _smallest(classes, batch)
    ]

    def bound_ms(number: int) -> float:
        """Bound plans of at least so many micro-steps."""
        return micro_steps_bound_ms(bounded, batch, ranks, number, stages)

    fewest = ceil(fewest_micro_steps(bounded, batch, ranks) / multiple) * multiple
    first = fewest
    if len({k.mode for k in bounded}) > 1:  # other modes may hold more
        first = ceil(fewest_micro_steps(classes, batch, ranks) / multiple) * multiple
    candidates, _ = search(
        fillers,
        count(first, multiple),
        bound_ms,
        replace(SETTINGS, promising=PROMISING) if stages > 1 else SETTINGS,
        known_ms=min((filled.total_ms for filled in of_one_degree), default=inf),
        further=[least for filler in fillers for least in filler.list_least_waste(multiple)],
    )
    candidates = [*of_one_degree, *candidates[:LAID_OUT]]
    if stages == 1 and fewest <= 2 and 2 % multiple == 0:
        known_ms = min((filled.total_ms for filled in candidates), default=inf)
        if bound_ms(2) < known_ms < inf:
            divided = TwoMicroSteps(classes, sequences, ranks).search(known_ms)
            candidates += [] if divided is None else [divided]
    return candidates, bound_ms(fewest)


def _of_one_degree(
    classes: Sequence[PipelineClass], batch: Batch, ranks: int, multiple: int
) -> tuple[list[FilledMicroSteps], float]:
    """Find micro-steps of one of the degrees throughout, and the bound of that degree (ms).

    The best of them; with a ``multiple``, which may take more micro-steps yet, those of each
    degree. None if no degree that the ranks can form holds the longest sequence.
    """
    sequences = Sequences(batch.distinct, batch.multiplicity)
    of_degrees: list[tuple[float, int, FilledMicroSteps, float]] = []
    for k, degree in enumerate(classes):
        side_by_side = ranks // degree.gpus
        if not side_by_side or degree.capacity < batch.longest:
            continue
        one_rank = replace(degree, gpus=1, count=side_by_side)
        filled, bound_ms = plan_one_degree([one_rank], sequences, multiple)
        if multiple > 1:  # some ranks may be idle, which its bound does not count
            fewest = fewest_of_one_degree(one_rank, sequences, side_by_side)
            number = ceil(fewest / multiple) * multiple
            bound_ms = one_degree_bound_ms(one_rank, sequences, side_by_side, number)
        of_degrees.append((filled.total_ms, k, filled.of_class(k), bound_ms))
    of_degrees.sort(key=lambda entry: entry[:2])
    of_fastest = of_degrees if multiple > 1 else of_degrees[:1]
    bound_ms = of_degrees[0][3] if of_degrees else 0.0
    return [filled for _, _, filled, _ in of_fastest], bound_ms


def _smallest(classes: Sequence[PipelineClass], batch: Batch) -> list[int]:
    """List numbers of classes, from all of them down, that leave the smallest degrees out."""
    holding = [
        k for k, pipeline_class in enumerate(classes) if pipeline_class.capacity >= batch.longest
    ]
    return list(range(len(classes), holding[0], -1))


def _laid_out(
    busy: BusyRanks, classes: Sequence[PipelineClass], micro_steps: Sequence[Sequence[Group]]
) -> tuple[MicroStep, ...]:
    """Balance each micro-step's groups, occupy idle ranks, and put the largest groups first."""
    working = busy.borrow_sequences(
        [busy.occupy_idle_ranks(busy.rebalance_groups(groups)) for groups in micro_steps]
    )
    return tuple(
        MicroStep(
            tuple(sorted(groups, key=lambda group: -classes[group[0]].gpus)),
            busy.micro_step_ms(groups),
        )
        for groups in working
    )
