"""The one order in which a rank takes part in communication within a step.

Every rank derives its order from its rank view. The orders agree: two ranks see the events
that they share in the same sequence, and if every event waits for all of its members, the step
still runs to its end. Three rules make it so.

- Pipelines run in list order, which is the same for all ranks.
- A stage runs its passes in 1F1B order. Between the backward pass of one micro-batch and the
  forward pass of the next, it first receives those activations and then sends the gradients: the
  stage before it has sent the first and waits for the second. (Sending first would be a deadlock,
  unless the two are posted together.)
- Within a pass the groups take turns by axis, tp, ulysses, ring, sp; a layer repeats that turn.

In micro-steps of one stage every rank, also one without work, takes part in the gathers of every
micro-step. Micro-steps with stages follow each other as the micro-batches of one pipeline do: a
stage runs their passes in 1F1B order, and a rank leaves out those of the micro-steps in which it
has no work.

With expert parallelism the ranks of a block also exchange tokens in every layer, forward and
backward. A rank without a micro-batch in a micro-step of its component does only that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from seqplan.plans.experts import expert_group
from seqplan.plans.groups import Group
from seqplan.plans.one_f_one_b import stage_order
from seqplan.plans.views.rank_view import PipelineView, RankView

Phase = Literal["micro_step", "activations", "forward", "experts", "gradients", "backward"]


class Event(NamedTuple):
    """Something that all ranks of ``group`` do together.

    - ``forward``, ``backward``: a pass of ``micro_batch``, in which the group communicates.
    - ``activations``, ``gradients``: of ``micro_batch``, from one stage's rank to the next's or
      back; the group is the two ranks, the earlier stage first.
    - ``micro_step``: the gathers of a micro-step over the world, as under ZeRO-3, if there is one
      stage; ``pipeline`` is None and ``micro_batch`` is the micro-step's number.
    - ``experts``: the exchanges of a block in forward or in backward; ``pipeline`` is None if there
      is one stage, and ``micro_batch`` then is the micro-step's number.
    """

    pipeline: int | None
    micro_batch: int
    phase: Phase
    group: Group


def collectives(view: RankView) -> tuple[Event, ...]:
    """List every event of the rank, in order."""
    stages = max((placed.scheme.pp for placed in view.placement), default=1)
    if view.experts is not None and stages == 1:
        return tuple(_events_with_experts(view))
    block = expert_group(view.rank, view.expert_parallel)
    if view.micro_steps is None:
        return tuple(
            event for pipeline in view.pipelines for event in _pipeline_events(pipeline, block)
        )
    if stages > 1:
        return tuple(_events(_in_lockstep(view.pipelines, view.micro_steps), block))
    world = tuple(range(view.world_size))
    events: list[Event] = []
    for number in range(view.micro_steps):
        events.append(Event(None, number, "micro_step", world))
        for pipeline in view.pipelines:
            if pipeline.micro_step == number:
                events += _pipeline_events(pipeline, block)
    return tuple(events)


def _events_with_experts(view: RankView) -> list[Event]:
    """List the events of one stage, micro-step by micro-step."""
    micro_steps, total, _ = view.experts or ((), 0, 0)
    runs = [
        (pipeline, number)
        for pipeline in view.pipelines
        for number in range(len(pipeline.micro_batches))
    ]
    run_in = dict(zip(micro_steps, runs, strict=True))
    block = expert_group(view.rank, view.expert_parallel)
    world = tuple(range(view.world_size))
    events: list[Event] = []
    for micro_step in range(total):
        if view.micro_steps is not None:
            events.append(Event(None, micro_step, "micro_step", world))
        exchange = Event(None, micro_step, "experts", block)
        run = run_in.get(micro_step)
        for phase in _PASSES:
            if run is not None:
                pipeline, number = run
                events += [
                    Event(pipeline.index, number, phase, group) for group in _list_groups(pipeline)
                ]
            events.append(exchange)
    return events


_PASSES: tuple[Phase, Phase] = ("forward", "backward")


_Run = tuple[PipelineView, int]
"""A pipeline of the rank and the number of a micro-batch in it."""


def _in_lockstep(pipelines: Sequence[PipelineView], micro_steps: int) -> list[_Run | None]:
    """List what the rank runs in each micro-step, None if it has no work."""
    runs: list[_Run | None] = [None] * micro_steps
    for view in pipelines:
        if view.micro_step is not None and view.micro_batches:
            runs[view.micro_step] = (view, 0)
    return runs


def _pipeline_events(view: PipelineView, block: Group) -> list[Event]:
    return _events([(view, number) for number in range(len(view.micro_batches))], block)


def _events(runs: Sequence[_Run | None], block: Group) -> list[Event]:
    """List the events of micro-batches that go through the stages one after another.

    ``block``: the ranks that exchange tokens of experts, the rank alone if none do.
    """
    first = next((run for run in runs if run is not None), None)
    if first is None:
        return []
    at, pp = first[0].at.pp, first[0].scheme.pp
    events: list[Event] = []

    def transfer(phase: Phase, run: _Run | None, *, ahead: bool) -> None:
        if run is None:
            return
        view, micro_batch = run
        rank = view.pp_group[view.at.pp]
        if ahead and view.pp_next is not None:
            events.append(Event(view.index, micro_batch, phase, (rank, view.pp_next)))
        if not ahead and view.pp_previous is not None:
            events.append(Event(view.index, micro_batch, phase, (view.pp_previous, rank)))

    def add_compute(phase: Phase, run: _Run | None) -> None:
        if run is not None:
            view, micro_batch = run
            events.extend(
                Event(view.index, micro_batch, phase, group) for group in _list_groups(view)
            )
            if len(block) > 1:
                events.append(Event(view.index, micro_batch, "experts", block))

    order = stage_order(pp, at, len(runs))
    received_early = None  # the forward pass whose activations came before the last gradients
    for number, (kind, place) in enumerate(order):
        run = runs[place]
        if kind == "F":
            if place != received_early:
                transfer("activations", run, ahead=False)
            add_compute("forward", run)
            transfer("activations", run, ahead=True)
        else:
            transfer("gradients", run, ahead=True)
            add_compute("backward", run)
            if number + 1 < len(order) and order[number + 1][0] == "F":
                received_early = order[number + 1][1]
                transfer("activations", runs[received_early], ahead=False)
            transfer("gradients", run, ahead=False)
    return events


def _list_groups(view: PipelineView) -> list[Group]:
    """List the groups of several ranks in which a pass of the rank communicates."""
    axes = [view.tp_group, view.ulysses_group, view.ring_group]
    if view.scheme.ulysses > 1 and view.scheme.ring > 1:
        axes.append(view.sp_group)
    return [group for group in axes if len(group) > 1]
