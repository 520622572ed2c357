"""Rank views out of JSON: the inverse of writing them, with clear errors."""

import json
from typing import Any

import pytest
from document_changes import MISSING, change_document
from golden_plans import heterogeneous, regrouping
from hypothesis import given
from plan_strategies import plans

from seqplan import Plan, rank_view
from seqplan.plans.format.codec import PlanError
from seqplan.plans.views.decode_view import decode_view


@given(plans())
def test_a_view_survives_json(plan: Plan) -> None:
    for rank in range(plan.world_size):
        view = rank_view(plan, rank, digest="sha256:d" if rank % 2 else None)
        assert decode_view(json.loads(json.dumps(view.to_dict()))) == view


def view_document() -> dict[str, Any]:
    """Rank 5 of a step with a pipeline of three stages."""
    return rank_view(heterogeneous()[0], 5, digest="sha256:d").to_dict()


FIRST = "pipelines.0.micro_batches.0"
RANGES = f"{FIRST}.sequences.0.ranges"
DAMAGES = [
    ("more", 1, "more: is not a field"),
    (f"{FIRST}.sequences.0.more", 1, "pipelines[0].micro_batches[0].sequences[0].more: is not a"),
    ("tokens", MISSING, "tokens: is missing"),
    ("lost_ranks", [6, 6], "lost_ranks: must ascend within 0 … 7"),
    ("lost_ranks", [5], "lost_ranks: rank 5 runs a pipeline"),
    ("step", "3", 'step: must be an integer ≥ 0: "3"'),
    ("rank", 8, "rank: 8 is outside 0 … 7"),
    ("digest", 5, "digest: must be a string"),
    ("pipelines.0.at.pp", 3, "at.pp: 3 is outside 0 … 2"),
    ("placement.0.ranks", [[0, 2], [1, 2]], "placement[0].ranks: must be"),
    ("placement.0.ranks", [[4, 9]], "placement[0].ranks[0]: must be [first, stop] up to 8"),
    ("placement", lambda p: p[:-1], "pipelines: are not those that the placement gives rank 5"),
    ("pipelines.0.groups.pp", [4, 5], "groups.pp: has 2 ranks, pp3 must have 3"),
    ("pipelines.0.groups.pp", [5, 4, 6], "groups.pp: has rank 4 where rank 5 stands"),
    ("pipelines.0.groups.pp", [4, 5, 8], "groups.pp: must be distinct ranks below world_size 8"),
    ("pipelines.0.neighbors.pp_next", 4, "neighbors.pp_next: is 4, the groups give 6"),
    (f"{FIRST}.tokens", 9, "tokens: is 9, the sequences give 513"),
    (f"{FIRST}.local_tokens", 9, "local_tokens: is 9, the sequences give 513"),
    (f"{FIRST}.padded_local_tokens", 512, "padded_local_tokens: must be an integer ≥ 513: 512"),
    (f"{FIRST}.cu_seqlens", [0, 511, 513], "cu_seqlens: is not the offsets of the sequences' len"),
    (f"{FIRST}.ring_cu_seqlens", [0, 513], "ring_cu_seqlens: must be 0 and then 2 offsets"),
    (f"{FIRST}.ring_cu_seqlens", [0, 513, 512], "ring_cu_seqlens: descends"),
    (f"{FIRST}.padded_cu_seqlens", [0, 500, 513], "has less room than a sequence has tokens"),
    (RANGES, [[0, 513]], "sequences[0].ranges[0]: must be [start, stop) within 0 … 512: [0, 513]"),
    (RANGES, [[10, 512], [0, 10]], "ranges[1]: must be [start, stop) within 512 … 512: [0, 10]"),
    (RANGES, [[0, 1], [1, 2], [2, 512]], "sequences[0].ranges: has 3 ranges, at most two"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGES)
def test_damage_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(PlanError) as raised:
        decode_view(change_document(view_document(), path, value), origin="from here")
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
