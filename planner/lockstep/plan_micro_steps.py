"""Flexible sequence parallelism in lockstep: each micro-step forms its groups anew.

All ranks run their k-th micro-batches together: under ZeRO-3 and FSDP, where every rank gathers
every layer with all others, and where groups change from micro-batch to micro-batch. A micro-step
is a set of groups side by side, each with one micro-batch, and lasts as long as its slowest group;
a step is the sum of its micro-steps (FlexSP, arXiv 2412.01523, with its cost model), and with
stages as much more as filling and draining them takes. Each micro-step's groups and each group's
sequences are chosen anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, inf

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.busy_ranks import BusyRanks, Group
from seqplan.planner.lockstep.filled_micro_steps import FilledMicroSteps
from seqplan.planner.lockstep.filler import MicroStepsFiller
from seqplan.planner.lockstep.micro_step_bounds import (
    Sequences,
    fewest_micro_steps,
    fewest_of_one_degree,
    in_stages_ms,
    micro_steps_bound_ms,
    one_degree_bound_ms,
    stage_class,
)
from seqplan.planner.lockstep.one_degree import plan_one_degree
from seqplan.planner.lockstep.search import SearchSettings, TargetFiller, search
from seqplan.planner.lockstep.two_micro_steps import TwoMicroSteps
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


@dataclass(frozen=True)
class MicroStep:
    """Groups of one micro-step, largest first, and how long they take at one stage (ms)."""

    groups: tuple[Group, ...]
    time_ms: float


@dataclass(frozen=True)
class MicroSteps:
    """A step's micro-steps of one layout and a proven lower bound over all (ms).

    Groups are of ``classes``, as one stage sees them, whose ``schemes`` they run;
    ``bounded``: the classes of all schemes that the bound holds for; ``ranks``: of a stage.
    """

    classes: tuple[PipelineClass, ...]
    schemes: tuple[Scheme, ...]
    bounded: tuple[PipelineClass, ...]
    ranks: int
    micro_steps: tuple[MicroStep, ...]
    lower_bound_ms: float

    @property
    def stages(self) -> int:
        """Return the stages that the micro-steps go through one after another."""
        return self.schemes[0].pp

    @property
    def objective_ms(self) -> float:
        """Return Σ micro-steps, and (stages − 1) times the longest."""
        return in_stages_ms([micro_step.time_ms for micro_step in self.micro_steps], self.stages)

    def with_bound(self, bound_ms: float) -> MicroSteps:
        """Return these with another lower bound (ms); it differs from them by rounding at least."""
        return replace(self, lower_bound_ms=min(bound_ms, self.objective_ms))


def plan_micro_steps(
    batch: Batch, models: Sequence[SchemeModel], gpus: int, multiple: int = 1
) -> MicroSteps | None:
    """Find good micro-steps for a batch on schemes of one layout; None if it does not fit.

    For each number of micro-steps from the fewest that memory allows, in multiples of ``multiple``,
    and each smallest degree: all micro-steps with one common target, the least that works; then,
    from the best of these, targets are changed one against the others while the sum falls. (Larger
    groups than needed can be better if memory is tight: they mix long and short sequences.)
    Micro-steps that waste the least time one by one join them, and the best of the best numbers are
    searched further. Micro-steps of one degree throughout are tried first, which is all if there is
    no other. Then sequences of equal groups are assigned evenly, and groups split, widened or given
    a sequence of another micro-step until no rank is idle, or sequences are too few for that. All
    this for each recomputation mode, and with groups of powers of two alone as well; then each
    micro-batch takes the cheapest mode that holds it. ``ValueError`` if sequences are fewer than
    the required micro-steps.
    """
    best = plan_best_choice(batch, models, list_choices(models), gpus, multiple)
    return None if best is None else best[1]


Choice = tuple[tuple[Scheme, ...], str | None]
"""Schemes of the groups of a search, and the recomputation mode that it is for."""


def list_choices(models: Sequence[SchemeModel]) -> list[Choice]:
    """List the searches of a step; the mode is None if there is one."""
    names = dict.fromkeys(mode.name for model in models for mode in model.modes)
    return [
        (tuple(model.scheme for model in some if not name or model.find_mode(name)), name)
        for some in _list_sizes(models)
        for name in (names if len(names) > 1 else (None,))
    ]


def plan_best_choice(
    batch: Batch,
    models: Sequence[SchemeModel],
    choices: Sequence[Choice],
    gpus: int,
    multiple: int = 1,
) -> tuple[Choice, MicroSteps] | None:
    """Plan with the best of some choices, the first of equal ones; None if none holds the batch.

    In the order of their bounds: a mode that holds less needs more micro-steps, and is not searched
    if so many take longer than the best known ones, whatever their modes.
    """
    bounded = tuple(of_mode for model in models for of_mode in stage_class(model).by_mode)
    ranks, stages = gpus // models[0].scheme.pp, models[0].scheme.pp
    in_order = []
    for place, choice in enumerate(choices):
        of_mode = _list_models(models, choice)
        classes = [c for c in map(stage_class, of_mode) if c.gpus <= ranks]
        if batch.longest > max((c.capacity for c in classes), default=0):
            continue
        number = fewest_micro_steps(classes, batch, ranks) if len(choices) > 1 else 0
        bound_ms = micro_steps_bound_ms(bounded, batch, ranks, number, stages) if number else 0.0
        in_order.append((bound_ms, place, choice, of_mode))
    best: tuple[float, int, Choice, MicroSteps] | None = None
    for bound_ms, place, choice, of_mode in sorted(in_order, key=lambda entry: entry[:2]):
        if best is not None and bound_ms > best[0]:
            break
        micro_steps = _plan_choice(batch, models, of_mode, bounded, choice[1], gpus, multiple)
        if micro_steps is None:
            continue
        if best is None or (micro_steps.objective_ms, place) < best[:2]:
            best = micro_steps.objective_ms, place, choice, micro_steps
    return None if best is None else best[2:]


def _list_models(models: Sequence[SchemeModel], choice: Choice) -> list[SchemeModel]:
    """List the schemes of a choice in its mode."""
    schemes, name = choice
    by_scheme = {model.scheme: model for model in models}
    return [
        model
        for scheme in schemes
        if (model := by_scheme[scheme].find_mode(name) if name else by_scheme[scheme])
    ]


def _plan_choice(
    batch: Batch,
    models: Sequence[SchemeModel],
    of_mode: list[SchemeModel],
    bounded: tuple[PipelineClass, ...],
    name: str | None,
    gpus: int,
    multiple: int,
) -> MicroSteps | None:
    """Find good micro-steps with some of the schemes, as ``plan_micro_steps``; one search of it."""
    micro_steps = _plan_micro_steps(batch, of_mode, bounded, gpus, multiple)
    if micro_steps is None or not name:
        return micro_steps
    whole = {model.scheme: stage_class(model) for model in models}
    return _choose_modes(micro_steps, batch, whole)


def _list_sizes(models: Sequence[SchemeModel]) -> list[Sequence[SchemeModel]]:
    """List all schemes, and those of powers of two alone if there are others."""
    powers = [m for m in models if m.scheme.sp & (m.scheme.sp - 1) == 0]
    return [models, powers] if 0 < len(powers) < len(models) else [models]


def _choose_modes(
    micro_steps: MicroSteps, batch: Batch, classes: Mapping[Scheme, PipelineClass]
) -> MicroSteps:
    """Let each micro-batch take its cheapest mode, which shortens micro-steps."""
    of_scheme = tuple(classes[scheme] for scheme in micro_steps.schemes)
    timed = []
    for micro_step in micro_steps.micro_steps:
        held = [(k, [batch.lengths[i] for i in positions]) for k, positions in micro_step.groups]
        slowest = max(
            of_scheme[k].choose_mode(lengths).micro_batch_ms(lengths) for k, lengths in held
        )
        timed.append(MicroStep(micro_step.groups, slowest))
    chosen = replace(micro_steps, classes=of_scheme, micro_steps=tuple(timed))
    return chosen.with_bound(micro_steps.lower_bound_ms)


def _plan_micro_steps(
    batch: Batch,
    models: Sequence[SchemeModel],
    bounded: tuple[PipelineClass, ...],
    gpus: int,
    multiple: int,
) -> MicroSteps | None:
    """Find good micro-steps of one recomputation mode; the bound is over all of ``bounded``."""
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
        one_rank = replace(degree, gpus=1)
        filled, bound_ms = plan_one_degree(one_rank, sequences, side_by_side, multiple)
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
