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
from dataclasses import replace
from typing import NamedTuple

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.bounds.micro_step_bounds import (
    fewest_micro_steps,
    micro_steps_bound_ms,
    stage_class,
)
from seqplan.planner.lockstep.micro_steps import MicroStep, MicroSteps
from seqplan.planner.lockstep.one_mode import plan_one_mode
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.scheme import Scheme


def plan_micro_steps(
    batch: Batch, models: Sequence[SchemeModel], gpus: int, multiple: int = 1
) -> MicroSteps | None:
    """Find good micro-steps for a batch on schemes of one layout; None if it does not fit.

    One search for each recomputation mode, and with groups of powers of two alone as well; then
    each micro-batch takes the cheapest mode that holds it. Their number is a multiple of
    ``multiple``; ``ValueError`` if sequences are fewer.
    """
    best = plan_best_choice(batch, models, list_choices(models), gpus, multiple)
    return None if best is None else best.micro_steps


Choice = tuple[tuple[Scheme, ...], str | None]
"""Schemes of the groups of a search, and the recomputation mode that it is for."""

NEAR = 1.06
"""Time over that of the best choice up to which another one may be the best of similar batches. On
36 steps of experts, 64 and 32 GPUs, steps whose components try these alone are as short on average
(0.7 % longer at most), with the best choice alone 0.4 % longer (2.9 % at most)."""


class BestChoice(NamedTuple):
    """The micro-steps of the best choice; ``near``: the choices ``NEAR`` it, the best first."""

    near: list[Choice]
    micro_steps: MicroSteps


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
) -> BestChoice | None:
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
    planned: list[tuple[float, int, Choice, MicroSteps]] = []
    for bound_ms, place, choice, of_mode in sorted(in_order, key=lambda entry: entry[:2]):
        if planned and bound_ms > min(entry[0] for entry in planned):
            break
        micro_steps = _plan_choice(batch, models, of_mode, bounded, choice[1], gpus, multiple)
        if micro_steps is not None:
            planned.append((micro_steps.objective_ms, place, choice, micro_steps))
    if not planned:
        return None
    planned.sort(key=lambda entry: entry[:2])
    best_ms, _, _, best = planned[0]
    return BestChoice([choice for ms, _, choice, _ in planned if ms <= NEAR * best_ms], best)


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
    micro_steps = plan_one_mode(batch, of_mode, bounded, gpus, multiple)
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
