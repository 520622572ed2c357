"""Plans written by hand: which sequences run where, without costs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import index
from typing import SupportsIndex, cast

from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme
from seqplan.plans.version import VERSION

NO_PROFILE = "by-hand"
"""Stands for the profile's digest: nothing is predicted of such a plan."""


def construct_plan(
    lengths: Sequence[int],
    pipelines: Mapping[str, Sequence[Sequence[Sequence[int]]]],
    *,
    ids: Sequence[int] | None = None,
    loss_tokens: int | None = None,
    step: int = 0,
    world_size: int | None = None,
) -> Plan:
    """Make a plan from the micro-batches of each pipeline; all predicted times are 0.

    ``lengths``: tokens of each sequence; ``ids``: their numbers in the data set, by default their
    places here. ``pipelines``: for a scheme such as ``"tp2.u2"`` its pipelines, each a list of
    micro-batches, each a list of places in ``lengths``: ``{"u2": [[[0, 3], [1]], [[2]]]}`` are two
    pipelines of two ranks. Pipelines take consecutive ranks in this order; ``world_size``: more
    ranks than that leave the last ones idle. ``loss_tokens``: labels in the loss, by default every
    token but the first of each sequence. ``ValueError`` for a sequence that is not in exactly one
    micro-batch, or too few ranks; ``TypeError`` for lists of another depth and numbers that are not
    whole.
    """
    lengths = [_read_whole("lengths", length) for length in lengths]
    step = _read_whole("step", step)
    if not lengths:
        raise ValueError("a plan needs sequences")
    if step < 0:
        raise ValueError(f"step {step}: steps are counted from 0. Give 0 or more")
    if bad := [place for place, length in enumerate(lengths) if length < 1]:
        raise ValueError(
            f"sequence {bad[0]} has length {lengths[bad[0]]}; must be 1 or more tokens"
        )
    if ids is not None and len(ids) != len(lengths):
        raise ValueError(
            f"there are {len(ids)} ids for {len(lengths)} sequences. Give one id for each sequence"
        )
    if not isinstance(pipelines, Mapping):
        raise TypeError(f"pipelines: {pipelines!r:.60}. Give a mapping by scheme")
    planned = []
    places: list[int] = []
    first = 0
    for text, of_scheme in pipelines.items():
        scheme = Scheme.parse(text)
        _check_nesting(text, of_scheme)
        for micro_batches in of_scheme:
            ranks = tuple(range(first, first + scheme.gpus))
            first += scheme.gpus
            batches = [_micro_batch(scheme, micro, lengths) for micro in micro_batches]
            planned.append(PlannedPipeline(scheme, ranks, tuple(batches), 0.0))
            places += (place for micro in batches for place in micro.sequences)
    if sorted(places) != list(range(len(lengths))):
        often = next((p for p in places if places.count(p) > 1), None)
        absent = next((p for p in range(len(lengths)) if p not in places), None)
        which = f"{absent} is in no" if often is None else f"{often} is in more than one"
        raise ValueError(f"sequence {which} micro-batch; each must be in exactly one")
    world = first if world_size is None else _read_whole("world_size", world_size)
    if world < first:
        raise ValueError(
            f"the pipelines take {first} ranks, world_size is {world}. Raise world_size"
        )
    tokens = sum(lengths)
    labels = tokens - len(lengths) if loss_tokens is None else loss_tokens
    if not 0 <= _read_whole("loss_tokens", labels) <= tokens:
        raise ValueError(f"loss_tokens {labels}: there are from 0 to {tokens}, every token at most")
    return Plan(
        step=step,
        provenance=Provenance(VERSION, 0, NO_PROFILE, None),
        world_size=world,
        ids=tuple(_read_whole("ids", i) for i in (range(len(lengths)) if ids is None else ids)),
        lengths=tuple(lengths),
        tokens=tokens,
        loss_tokens=int(labels),
        pipelines=tuple(planned),
        idle_ranks=tuple(range(first, world)),
        groups=process_groups(planned),
        predicted_ms=0.0,
        lower_bound_ms=0.0,
        gap=0.0,
        selection=(),
    )


def _read_whole(name: str, value: object) -> int:
    """Read a whole number, also one of numpy; ``TypeError`` for another value."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name}: {value!r:.60} is no whole number. Give whole numbers")
    return index(value)


def _check_nesting(scheme: str, pipelines: object) -> None:
    """Raise ``TypeError`` if pipelines are no lists of lists of lists."""
    level = [pipelines]
    for _ in range(3):
        if bad := [value for value in level if not isinstance(value, Collection)]:
            raise TypeError(
                f"pipelines[{scheme!r}]: {bad[0]!r:.60} is no list. Give a list of pipelines, each "
                "a list of micro-batches, each a list of places in lengths"
            )
        level = [value for values in level for value in cast(Collection[object], values)]


def _micro_batch(scheme: Scheme, places: Sequence[int], lengths: Sequence[int]) -> MicroBatch:
    places = [_read_whole("places", place) for place in places]
    if not places:
        raise ValueError("a micro-batch is empty; leave it out")
    if bad := [place for place in places if not 0 <= place < len(lengths)]:
        raise ValueError(f"there is no sequence {bad[0]}; there are {len(lengths)}")
    chosen = [lengths[place] for place in places]
    return MicroBatch(tuple(places), sum(chosen), scheme.pad_micro_batch(chosen), 0.0)
