"""Process groups: the layout of ranks, the creation order."""

from hypothesis import given
from hypothesis import strategies as st
from plan_strategies import plans

from seqplan.plans.groups import Coordinates, pipeline_groups, process_groups
from seqplan.plans.plan import Plan, PlannedPipeline
from seqplan.plans.scheme import Scheme

degrees = st.integers(1, 4)


def on(scheme: Scheme, *ranks: int) -> PlannedPipeline:
    return PlannedPipeline(scheme, ranks or tuple(range(scheme.gpus)), (), 0.0)


def test_the_order_of_groups() -> None:
    scheme = Scheme(tp=2, pp=2, ulysses=2, ring=2)
    assert pipeline_groups(on(scheme)) == [
        *[(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)],
        *[(0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)],
        *[(0, 4), (1, 5), (2, 6), (3, 7), (8, 12), (9, 13), (10, 14), (11, 15)],
        *[(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)],
        *[(0, 8), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15)],
    ]


def test_groups_follow_the_listed_ranks_and_are_kept_once() -> None:
    groups = process_groups(
        [
            on(Scheme(tp=2, ring=3), 9, 8, 7, 6, 5, 4),
            on(Scheme(), 3),
            on(Scheme(ulysses=2), 9, 8),
            on(Scheme(ulysses=2), 8, 9),
        ]
    )
    assert groups == ((9, 8), (7, 6), (5, 4), (9, 7, 5), (8, 6, 4), (8, 9))


@given(degrees, degrees, degrees, degrees)
def test_members_differ_on_one_axis_only(tp: int, pp: int, ulysses: int, ring: int) -> None:
    scheme = Scheme(tp=tp, pp=pp, ulysses=ulysses, ring=ring)
    at = [Coordinates.from_rank_index(scheme, index) for index in range(scheme.gpus)]
    assert [place.index(scheme) for place in at] == list(range(scheme.gpus))
    assert len(set(at)) == scheme.gpus
    for place in at:
        assert place.tp < tp
        assert place.pp < pp
        assert place.ulysses < ulysses
        assert place.ring < ring
    groups = pipeline_groups(on(scheme))
    kinds = {"tp": tp, "ulysses": ulysses, "ring": ring, "pp": pp}
    expected = sum(scheme.gpus // degree for degree in kinds.values() if degree > 1)
    if ulysses > 1 and ring > 1:
        expected += scheme.gpus // scheme.sp
    assert len(groups) == len(set(groups)) == expected
    for group in groups:
        moving = [
            axis
            for axis in ("tp", "ulysses", "ring", "pp")
            if len({getattr(at[rank], axis) for rank in group}) > 1
        ]
        if moving == ["ulysses", "ring"]:
            order = [at[rank].ring * ulysses + at[rank].ulysses for rank in group]
        else:
            assert len(moving) == 1
            order = [getattr(at[rank], moving[0]) for rank in group]
        assert order == list(range(len(group)))


@given(plans())
def test_creation_order_is_that_of_first_use(plan: Plan) -> None:
    in_order: list[tuple[int, ...]] = []
    for pipeline in plan.pipelines:
        in_order += [group for group in pipeline_groups(pipeline) if group not in in_order]
    assert process_groups(plan.pipelines) == tuple(in_order)
    assert all(len(group) >= 2 for group in in_order)
