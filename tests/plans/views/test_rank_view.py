"""Rank views: together they are the plan, each rank's share of it exactly once."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from plan_builder import plan_of
from plan_strategies import plans

from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import PipelineView, RankView, rank_view, rank_views, views_json


def views(plan: Plan) -> list[RankView]:
    return [rank_view(plan, rank) for rank in range(plan.world_size)]


def one_pipeline(scheme: Scheme, lengths: tuple[int, ...], world_size: int) -> Plan:
    padded = scheme.pad_micro_batch(lengths)
    batch = MicroBatch(tuple(range(len(lengths))), sum(lengths), padded, 5.0)
    pipeline = PlannedPipeline(scheme, tuple(range(scheme.gpus)), (batch,), 5.0 * scheme.pp)
    ids = tuple(range(100, 100 + len(lengths)))
    more: Any = {"step": 3, "world_size": world_size, "ids": ids}
    return plan_of((pipeline,), lengths, pipeline.predicted_ms, gap=0.0, **more)


@given(plans())
def test_views_hold_every_token_once(plan: Plan) -> None:
    held = [np.zeros(length, dtype=np.int64) for length in plan.lengths]
    tokens: Counter[int] = Counter()
    for view in views(plan):
        for part in view.pipelines:
            pipeline = plan.pipelines[part.index]
            scheme = pipeline.scheme
            assert scheme == part.scheme
            assert pipeline.ranks[part.at.index(scheme)] == view.rank
            tokens[part.index] += 1
            for batch, planned in zip(part.micro_batches, pipeline.micro_batches, strict=True):
                assert [share.position for share in batch.sequences] == list(planned.sequences)
                assert batch.padded_local_tokens * scheme.sp == planned.padded_tokens
                assert batch.local_tokens <= batch.padded_local_tokens
                assert len(batch.positions()) == batch.local_tokens
                assert batch.cu_seqlens().dtype == np.int32
                assert batch.cu_seqlens()[-1] == planned.tokens
                assert batch.pad_cu_seqlens()[-1] <= planned.padded_tokens
                assert len(batch.ring_cu_seqlens()) == len(planned.sequences) + 1
                for share in batch.sequences:
                    assert share.id == plan.ids[share.position]
                    assert share.length == plan.lengths[share.position]
                    if part.at.tp == 0 and part.at.pp == 0:
                        for start, stop in share.ranges:
                            held[share.position][start:stop] += 1
    assert all((times == 1).all() for times in held)
    assert tokens == {index: p.scheme.gpus for index, p in enumerate(plan.pipelines)}


@given(plans())
def test_groups_and_neighbors_agree_between_ranks(plan: Plan) -> None:
    parts = {(part.index, view.rank): part for view in views(plan) for part in view.pipelines}

    def same(part: PipelineView, rank: int) -> PipelineView:
        return parts[part.index, rank]

    known = set(plan.groups)
    for (_, rank), part in parts.items():
        groups = (
            part.tp_group, part.ulysses_group, part.ring_group, part.sp_group, part.pp_group
        )  # fmt: skip
        for name, group in zip(("tp", "ulysses", "ring", "sp", "pp"), groups, strict=True):
            assert rank in group
            assert len(group) == 1 or group in known
            for member in group:
                assert getattr(same(part, member), f"{name}_group") == group
        assert part.tp_group[part.at.tp] == rank
        assert part.ulysses_group[part.at.ulysses] == rank
        assert part.ring_group[part.at.ring] == rank
        assert part.pp_group[part.at.pp] == rank
        assert (part.ring_next is None) == (part.scheme.ring == 1)
        if part.ring_next is not None:
            assert same(part, part.ring_next).ring_previous == rank
        assert (part.pp_next is None) == (part.at.pp == part.scheme.pp - 1)
        if part.pp_next is not None:
            assert same(part, part.pp_next).pp_previous == rank
        else:
            assert (part.pp_previous is None) == (part.scheme.pp == 1)
    expected = {
        group
        for part in parts.values()
        for group in (
            part.tp_group, part.ulysses_group, part.ring_group, part.sp_group, part.pp_group
        )
        if len(group) > 1
    }  # fmt: skip
    assert expected == known


@given(plans())
def test_views_are_json(plan: Plan) -> None:
    for view in views(plan):
        fields = view.to_dict()
        assert json.loads(json.dumps(fields)) == fields


@given(plans())
def test_all_views_at_once_are_those_one_by_one(plan: Plan) -> None:
    one_by_one = [rank_view(plan, rank, digest="d") for rank in range(plan.world_size)]
    assert rank_views(plan, digest="d") == one_by_one
    written = [json.dumps(view.to_dict(), separators=(",", ":")).encode() for view in one_by_one]
    assert views_json(plan, digest="d") == written


def test_a_view_in_full() -> None:
    plan = one_pipeline(Scheme(tp=2, pp=2, ulysses=2, ring=2), (9, 4), world_size=17)
    view = rank_view(plan, 9, digest="sha256:d")  # tp 1, pp 1, ulysses 0, ring 0
    assert view.to_dict() == {
        "step": 3,
        "rank": 9,
        "world_size": 17,
        "tokens": 13,
        "loss_tokens": 11,
        "micro_steps": None,
        "digest": "sha256:d",
        "placement": [{"scheme": {"tp": 2, "pp": 2, "ulysses": 2, "ring": 2}, "ranks": [[0, 16]]}],
        "pipelines": [
            {
                "index": 0,
                "scheme": {"tp": 2, "pp": 2, "ulysses": 2, "ring": 2},
                "micro_step": None,
                "predicted_ms": 10.0,
                "at": {"tp": 1, "pp": 1, "ulysses": 0, "ring": 0},
                "groups": {
                    "tp": [8, 9],
                    "ulysses": [9, 11],
                    "ring": [9, 13],
                    "sp": [9, 11, 13, 15],
                    "pp": [1, 9],
                },
                "neighbors": {
                    "ring_previous": 13,
                    "ring_next": 13,
                    "pp_previous": 1,
                    "pp_next": None,
                },
                "micro_batches": [
                    {
                        "sequences": [
                            {"position": 0, "id": 100, "length": 9, "ranges": [[0, 2], [6, 7]]},
                            {"position": 1, "id": 101, "length": 4, "ranges": []},
                        ],
                        "tokens": 13,
                        "local_tokens": 3,
                        "padded_local_tokens": 4,
                        "cu_seqlens": [0, 9, 13],
                        "padded_cu_seqlens": [0, 12, 16],
                        "ring_cu_seqlens": [0, 5, 7],
                        "cost_ms": 5.0,
                    }
                ],
            }
        ],
    }
    assert view.pipelines[0].micro_batches[0].positions().tolist() == [0, 1, 6]
    other = rank_view(plan, 10).pipelines[0].micro_batches[0]
    assert other.positions().tolist() == [7, 8, 0, 3]


def test_short_sequences_leave_ranks_empty() -> None:
    plan = one_pipeline(Scheme(ring=4), (1,), world_size=4)
    batches = [rank_view(plan, rank).pipelines[0].micro_batches[0] for rank in range(4)]
    assert sorted(batch.local_tokens for batch in batches) == [0, 0, 0, 1]
    assert {batch.padded_local_tokens for batch in batches} == {2}
    assert [batch.ring_cu_seqlens().tolist() for batch in batches if not batch.local_tokens] == [
        [0, 0]
    ] * 3


def test_idle_and_foreign_ranks() -> None:
    plan = one_pipeline(Scheme(), (5,), world_size=2)
    assert rank_view(plan, 1).pipelines == ()
    assert type(rank_view(plan, np.int64(1)).rank) is int  # type: ignore[arg-type]
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank must be in 0 … 1, not {rank}"):
            rank_view(plan, rank)
