"""The one order in which a rank takes part in communication within a step.

Every rank derives its own order from its rank view. The orders agree: two ranks see the events
that they share in the same sequence, and if every event waits for all of its members, the step
still runs to its end. Three rules make it so.

- Pipelines run in list order, which is the same for all ranks.
- A stage runs its passes in 1F1B order. Between the backward pass of one micro-batch and the
  forward pass of the next, it first receives those activations and then sends the gradients: the
  stage before it has sent the first and waits for the second. (Sending first would be a deadlock,
  unless the two are posted together.)
- Within a pass the groups take turns by axis, tp, ulysses, ring, sp; a layer repeats that turn.

Under ZeRO-3 every rank, also one without work, takes part in the gathers of every round.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from seqplan.plans.groups import Group
from seqplan.plans.one_f_one_b import stage_order
from seqplan.plans.views.rank_view import PipelineView, RankView

Phase = Literal["round", "activations", "forward", "gradients", "backward"]


class Event(NamedTuple):
    """Something that all ranks of ``group`` do together.

    - ``forward``, ``backward``: a pass of ``micro_batch``, in which the group communicates.
    - ``activations``, ``gradients``: of ``micro_batch``, from one stage's rank to the next's or
      back; the group is the two ranks, the earlier stage first.
    - ``round``: the ZeRO-3 gathers of a round over the world; ``pipeline`` is None and
      ``micro_batch`` is the round's number.
    """

    pipeline: int | None
    micro_batch: int
    phase: Phase
    group: Group


def collectives(view: RankView) -> tuple[Event, ...]:
    """List every event of the rank, in order."""
    if view.rounds is None:
        return tuple(event for pipeline in view.pipelines for event in _pipeline_events(pipeline))
    world = tuple(range(view.world_size))
    events: list[Event] = []
    for number in range(view.rounds):
        events.append(Event(None, number, "round", world))
        for pipeline in view.pipelines:
            if pipeline.round == number:
                events += _pipeline_events(pipeline)
    return tuple(events)


def _pipeline_events(view: PipelineView) -> list[Event]:
    rank = view.pp_group[view.at.pp]
    before = None if view.pp_previous is None else (view.pp_previous, rank)
    after = None if view.pp_next is None else (rank, view.pp_next)
    axes = [view.tp_group, view.ulysses_group, view.ring_group]
    if view.scheme.ulysses > 1 and view.scheme.ring > 1:
        axes.append(view.sp_group)
    shared = [group for group in axes if len(group) > 1]
    events: list[Event] = []

    def transfer(phase: Phase, micro_batch: int, pair: Group | None) -> None:
        if pair is not None:
            events.append(Event(view.index, micro_batch, phase, pair))

    order = stage_order(view.scheme.pp, view.at.pp, len(view.micro_batches))
    received_early = None  # the forward pass whose activations came before the last gradients
    for number, (kind, micro_batch) in enumerate(order):
        if kind == "F":
            if micro_batch != received_early:
                transfer("activations", micro_batch, before)
            events += [Event(view.index, micro_batch, "forward", group) for group in shared]
            transfer("activations", micro_batch, after)
        else:
            transfer("gradients", micro_batch, after)
            events += [Event(view.index, micro_batch, "backward", group) for group in shared]
            if number + 1 < len(order) and order[number + 1][0] == "F":
                received_early = order[number + 1][1]
                transfer("activations", received_early, before)
            transfer("gradients", micro_batch, before)
    return events
