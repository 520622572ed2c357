"""Rank views out of JSON: the inverse of writing them, with clear errors."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from golden_plans import heterogeneous, regrouping
from hypothesis import given
from plan_strategies import plans

from seqplan.plans.format.codec import PlanError
from seqplan.plans.plan import Plan
from seqplan.plans.views.decode_view import decode_view
from seqplan.plans.views.rank_view import rank_view


@given(plans())
def test_a_view_survives_json(plan: Plan) -> None:
    for rank in range(plan.world_size):
        view = rank_view(plan, rank, digest="sha256:d" if rank % 2 else None)
        assert decode_view(json.loads(json.dumps(view.to_dict()))) == view


def view_document() -> dict[str, Any]:
    """Rank 5 of a step with a pipeline of three stages."""
    return rank_view(heterogeneous()[0], 5, digest="sha256:d").to_dict()


def batch(document: dict[str, Any]) -> Any:
    return document["pipelines"][0]["micro_batches"][0]


DAMAGES: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("unknown", lambda d: d.update(more=1), "more: is not a field"),
    (
        "unknown inside",
        lambda d: batch(d)["sequences"][0].update(more=1),
        "pipelines[0].micro_batches[0].sequences[0].more: is not a field",
    ),
    ("missing", lambda d: d.pop("tokens"), "tokens: is missing"),
    ("lost", lambda d: d.update(lost_ranks=[6, 6]), "lost_ranks: must ascend within 0 … 7"),
    ("lost runs", lambda d: d.update(lost_ranks=[5]), "lost_ranks: rank 5 runs a pipeline"),
    ("type", lambda d: d.update(step="3"), 'step: must be an integer ≥ 0: "3"'),
    ("rank", lambda d: d.update(rank=8), "rank: 8 is outside 0 … 7"),
    ("digest", lambda d: d.update(digest=5), "digest: must be a string"),
    ("place", lambda d: d["pipelines"][0]["at"].update(pp=3), "at.pp: 3 is outside 0 … 2"),
    (
        "placed ranks",
        lambda d: d["placement"][0].update(ranks=[[0, 2], [1, 2]]),
        "placement[0].ranks: must be",
    ),
    (
        "placed outside",
        lambda d: d["placement"][0].update(ranks=[[4, 9]]),
        "placement[0].ranks[0]: must be [first, stop] up to 8",
    ),
    (
        "placed elsewhere",
        lambda d: d["placement"].pop(),
        "pipelines: are not those that the placement gives rank 5",
    ),
    (
        "group size",
        lambda d: d["pipelines"][0]["groups"].update(pp=[4, 5]),
        "groups.pp: has 2 ranks, pp3 must have 3",
    ),
    (
        "group place",
        lambda d: d["pipelines"][0]["groups"].update(pp=[5, 4, 6]),
        "groups.pp: has rank 4 where rank 5 stands",
    ),
    (
        "group world",
        lambda d: d["pipelines"][0]["groups"].update(pp=[4, 5, 8]),
        "groups.pp: must be distinct ranks below world_size 8",
    ),
    (
        "neighbor",
        lambda d: d["pipelines"][0]["neighbors"].update(pp_next=4),
        "neighbors.pp_next: is 4, the groups give 6",
    ),
    ("tokens", lambda d: batch(d).update(tokens=9), "tokens: is 9, the sequences give 513"),
    (
        "local tokens",
        lambda d: batch(d).update(local_tokens=9),
        "local_tokens: is 9, the sequences give 513",
    ),
    (
        "room",
        lambda d: batch(d).update(padded_local_tokens=512),
        "padded_local_tokens: must be an integer ≥ 513: 512",
    ),
    (
        "offsets",
        lambda d: batch(d).update(cu_seqlens=[0, 511, 513]),
        "cu_seqlens: is not the offsets of the sequences' lengths",
    ),
    (
        "offsets count",
        lambda d: batch(d).update(ring_cu_seqlens=[0, 513]),
        "ring_cu_seqlens: must be 0 and then 2 offsets",
    ),
    (
        "offsets order",
        lambda d: batch(d).update(ring_cu_seqlens=[0, 513, 512]),
        "ring_cu_seqlens: descends",
    ),
    (
        "padding",
        lambda d: batch(d).update(padded_cu_seqlens=[0, 500, 513]),
        "padded_cu_seqlens: has less room than a sequence has tokens",
    ),
    (
        "range",
        lambda d: batch(d)["sequences"][0].update(ranges=[[0, 513]]),
        "sequences[0].ranges[0]: must be [start, stop) within 0 … 512: [0, 513]",
    ),
    (
        "range order",
        lambda d: batch(d)["sequences"][0].update(ranges=[[10, 512], [0, 10]]),
        "sequences[0].ranges[1]: must be [start, stop) within 512 … 512: [0, 10]",
    ),
    (
        "ranges",
        lambda d: batch(d)["sequences"][0].update(ranges=[[0, 1], [1, 2], [2, 512]]),
        "sequences[0].ranges: has 3 ranges, at most two",
    ),
]


@pytest.mark.parametrize(
    ("damage", "message"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES]
)
def test_damage_is_named(damage: Callable[[dict[str, Any]], object], message: str) -> None:
    document = copy.deepcopy(view_document())
    damage(document)
    with pytest.raises(PlanError) as raised:
        decode_view(document, origin="from here")
    assert str(raised.value).startswith("from here: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("document", [None, [], "view", 3])
def test_values_that_are_no_object_are_rejected(document: object) -> None:
    with pytest.raises(PlanError, match="view: must be an object"):
        decode_view(document)


def test_a_newer_minor_is_read_on_request() -> None:
    document = view_document()
    document["more"] = 1
    view = decode_view(document, strict=False)
    assert view == rank_view(heterogeneous()[0], 5, digest="sha256:d")


def test_an_idle_rank() -> None:
    view = rank_view(regrouping()[1], 3)
    assert view.pipelines == ()
    assert decode_view(view.to_dict()) == view
