"""Plans around slow ranks: their pipelines get less, and the bound stays proven."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from step_lengths import CASES, CODE, check_plan, draw

from seqplan import (
    Cost,
    Infeasible,
    Phase,
    Plan,
    Planner,
    Profile,
    Scheme,
    Strategy,
    Workload,
    explain,
    find_profile,
    make_proposal,
    to_json,
)
from seqplan.costs.fit.measurements import measurable
from seqplan.planner.errors import OptionError
from seqplan.planner.placement.slowdown import Slowdown, make_slow_fleet
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.step.check_bounds import find_unproven, witness_of
from seqplan.planner.step.slow_ranks import list_factors
from seqplan.plans.lint import lint


def plan(profile: str, gpus: int, lengths: list[int], slowdown: list[float] | None) -> Plan:
    planner = Planner.from_profile(profile, gpus, 32_768, execution="static", slowdown=slowdown)
    return planner.plan(lengths)


@pytest.mark.parametrize(("profile", "gpus", "tokens"), CASES)
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_a_slow_rank_costs_no_more_than_its_group(
    profile: str, gpus: int, tokens: int, factor: float
) -> None:
    lengths, slowdown = draw(tokens, 0), [1.0] * gpus
    slowdown[5] = factor
    equal, slow = (plan(profile, gpus, lengths, known) for known in (None, slowdown))
    (of_slow,) = (pipeline for pipeline in slow.pipelines if pipeline.slowdown > 1)
    assert of_slow.slowdown == factor
    assert 5 in of_slow.ranks
    group = min(len(pipeline.ranks) for pipeline in equal.pipelines)
    ideal = gpus / (gpus - group + group / factor)
    assert total_ms(slow) < total_ms(equal) * ideal * 1.01
    assert slow.gap < 0.02


def total_ms(of: Plan) -> float:
    return of.predicted_ms + (of.sync_ms or 0.0)


@pytest.mark.parametrize(
    ("gpus", "max_len", "lengths"),
    [
        (16, 131_072, [60_000, 20_000, 9_000, 5_000, 3_000, 2_000, 1_500, 900, 400]),
        (8, 32_768, [20_000, 9_000] + [900] * 6),
        (8, 32_768, [9_000] * 3),
        (8, 32_768, draw(25_000, 3)),
        (8, 32_768, draw(25_000, 4)),
    ],
)
def test_a_slow_rank_is_never_worse_than_a_lost_one(
    gpus: int, max_len: int, lengths: list[int]
) -> None:
    """One group of all ranks is the best if all are equal, and as slow as its slowest rank."""
    models = Workload(gpus, max_len, max_len).models(find_profile("llama3-8b-h100-80gb"))
    totals = []
    for factor in (1.0, 1.3, 2.0, 4.0, 1000.0, None):
        planner = Planner.from_profile(
            "llama3-8b-h100-80gb", gpus, max_len, slowdown=[1.0] * (gpus - 1) + [factor]
        )
        made = planner.plan(lengths)
        if factor is not None:
            check_plan(made, models)
        totals.append(total_ms(made))
    for slower, faster in pairwise(reversed(totals)):
        assert faster <= slower * 1.001


@pytest.mark.parametrize("seed", range(9))
def test_several_slow_ranks_are_never_worse_than_lost_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gpus, max_len = ((8, 32_768), (16, 65_536), (64, 131_072))[seed % 3]
    slow = rng.choice(gpus, int(rng.integers(2, gpus // 4 + 1)), replace=False).tolist()
    factors = {rank: float(rng.choice([1.3, 2.0, 4.0])) for rank in slow}
    lengths = [*rng.choice(CODE[max_len >= CODE], int(rng.integers(3, 30))).tolist(), max_len // 2]
    totals = []
    for known in (factors, dict.fromkeys(slow)):
        slowdown = [known.get(rank, 1.0) for rank in range(gpus)]
        planner = Planner.from_profile("llama3-8b-h100-80gb", gpus, max_len, slowdown=slowdown)
        totals.append(total_ms(planner.plan(lengths)))
    assert totals[0] <= totals[1] * 1.001


def test_many_slow_ranks_are_left_out_together() -> None:
    lengths, totals = [20_000, 9_000] + [900] * 6, []
    for slow in ([3.0, 3.1, 3.2, 3.3], [None] * 4):
        planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768, slowdown=[1.0] * 4 + slow)
        totals.append(total_ms(planner.plan(lengths)))
    assert totals[0] <= totals[1] * 1.001


@pytest.mark.parametrize(("profile", "gpus", "tokens"), CASES)
def test_plans_around_slow_ranks_are_sound(profile: str, gpus: int, tokens: int) -> None:
    known = find_profile(profile)
    models = Workload(gpus, 32_768, 32_768).models(known)
    for seed in range(2):
        factors = np.random.default_rng(seed).choice([1.0, 1.0, 1.0, 1.15, 1.7], gpus).tolist()
        made = plan(profile, gpus, draw(tokens, seed), factors)
        check_plan(made, models)
        witness = witness_of(made, models)
        if witness["proof"] == "prices":
            pipelines = sum(entry["pipelines"] for entry in witness["classes"])
            assert pipelines == len(made.pipelines)
        assert simulate_plan_ms(made, known.forward_fraction) <= made.predicted_ms + 0.01
        for pipeline in made.pipelines:
            assert pipeline.slowdown == max(factors[rank] for rank in pipeline.ranks)
        assert (
            sorted(r for p in made.pipelines for r in p.ranks) + list(made.idle_ranks)
            == list(range(gpus))
            or made.idle_ranks
        )
        if seed == 0:
            assert to_json(plan(profile, gpus, draw(tokens, seed), factors)) == to_json(made)
        claimed = replace(made, lower_bound_ms=made.predicted_ms)
        if made.gap > 0.003:
            assert list(find_unproven(claimed, models)) != []
        faster = [replace(p, slowdown=1.0) for p in made.pipelines]
        assert any(
            "but the profile gives" in line
            for line in lint(replace(made, pipelines=tuple(faster)), models)
        )


def test_without_slow_ranks_plans_are_the_same() -> None:
    lengths = draw(200_000, 1)
    plain, ones = (plan("llama3-8b-h100-80gb", 8, lengths, known) for known in (None, [1.0] * 8))
    assert to_json(plain) == to_json(ones)
    assert "slowdown" not in to_json(plain)


def test_the_bound_is_below_every_assignment_of_few_sequences() -> None:
    """Two pipelines of a GPU, one of them slow, and all ways to assign five sequences."""
    profile = find_profile("llama3-8b-h100-80gb").keep_schemes({Scheme(tp=2)})
    lengths = [8_000, 5_000, 4_500, 3_000, 700]
    planner = Planner.from_profile(profile, 4, 8_192, sync=None, slowdown=[1.0, 1.0, 1.0, 1.6])
    made = planner.plan(lengths)
    models = Workload(4, 8_192, 8_192).models(profile)
    fleet = make_slow_fleet(made.strategy, models, [1.0, 1.6])
    least = float("inf")
    for owners in product(range(2), repeat=len(lengths)):
        times = []
        for rank, k in enumerate(fleet.pipelines):
            mine = np.array(lengths)[np.array(owners) == rank]
            times.append(float(k.work_ms(mine).sum()) + (k.least_c if len(mine) else 0.0))
        least = min(least, max(times))
    assert made.lower_bound_ms <= least * (1 + 1e-9)
    assert made.predicted_ms <= least * 1.15


def test_largest_pipelines_take_the_fastest_blocks() -> None:
    strategy = Strategy.parse("1×tp4 + 2×tp2")
    placed = Slowdown((1.3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)).place(strategy)
    assert placed is not None
    assert {factor: ranks for ranks, factor in placed if factor > 1} == {1.3: (0, 1)}
    assert ((4, 5, 6, 7), 1.0) in placed
    lost = Slowdown((None, *(1.0,) * 7))
    assert lost.place(strategy) is None
    assert lost.place(Strategy.parse("1×tp4 + 1×tp2")) is not None


@pytest.mark.parametrize(
    ("strategy", "factors", "placed"),
    [
        ("2×u3", (1.4, 1, 1, 1, 1, 1), [((3, 4, 5), 1.0), ((0, 1, 2), 1.4)]),
        ("2×u3", (None, 1, 1, 1, 1, 1, 1), [((1, 2, 3), 1.0), ((4, 5, 6), 1.0)]),
        ("1×u3 + 1×u2", (1, 1, 1, 1, 1.2), [((0, 1, 2), 1.0), ((3, 4), 1.2)]),
        ("1×u2", (None, 1, 1, None), None),
        ("1×r3 + 1×tp1", (20, 1, 1, 1, 4, 1), [((1, 2, 3), 1.0), ((5,), 1.0)]),
        ("2×r3", (1.1, 1.1, 1, 1, 1, 1.1, 9, 9), [((0, 1, 2), 1.1), ((3, 4, 5), 1.1)]),
        ("2×r3", (None, 2, 2, 1, 1, 1, 2), [((1, 2, 3), 2), ((4, 5, 6), 2)]),
    ],
)
def test_groups_of_any_size_are_placed(
    strategy: str, factors: tuple[float | None, ...], placed: list[tuple[tuple[int, ...], float]]
) -> None:
    assert Slowdown(factors).place(Strategy.parse(strategy)) == placed


@pytest.mark.parametrize(
    ("profile", "gpus", "lost", "most"),
    [
        ("llama3-8b-h100-80gb", 8, (5,), 1.25),
        ("llama3-8b-h100-80gb", 8, (1, 6), 1.85),
        ("llama-7b-a800-80gb", 64, (13,), 1.05),
    ],
)
def test_steps_are_planned_on_without_lost_ranks(
    profile: str, gpus: int, lost: tuple[int, ...], most: float
) -> None:
    lengths = draw(25_000 * gpus, 0)
    planner = Planner.from_profile(
        profile, gpus, 32_768, slowdown=[None if rank in lost else 1.0 for rank in range(gpus)]
    )
    made = planner.plan(lengths)
    assert made.lost_ranks == lost
    assert set(lost) <= set(made.idle_ranks)
    models = Workload(gpus, 32_768, 32_768).leave_out(len(lost)).models(find_profile(profile))
    check_plan(made, models)
    assert "lost" in explain(made)
    assert planner.prove(made).gap <= made.gap
    whole = Planner.from_profile(profile, gpus, 32_768, execution="static").plan(lengths)
    assert made.predicted_ms <= most * whole.predicted_ms
    busy = replace(made, idle_ranks=tuple(r for r in made.idle_ranks if r != lost[0]))
    assert any("lost_ranks" in fault for fault in lint(busy, models))


def test_loads_with_lost_ranks_are_rejected() -> None:
    planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768, slowdown=[None] + [1.0] * 7)
    with pytest.raises(OptionError, match=r"loads with slowdown: ranks \[0\] are lost"):
        planner.plan([100], loads=[Phase("vision", [[64]], Cost(0.0, 0.01, 0.0))])


def test_explain_names_the_lack_of_speed() -> None:
    made = plan("llama3-8b-h100-80gb", 8, draw(200_000, 0), [1.0] * 7 + [1.3])
    line = next(line for line in explain(made).splitlines() if "slow ranks" in line)
    assert line.startswith("1 pipeline of slow ranks, up to 1.3 × (")
    assert "5.8 % less speed, up to 30 % more time if ignored" in line


def test_slow_pipelines_fit_no_coefficients() -> None:
    made = plan("llama3-8b-h100-80gb", 8, draw(200_000, 0), [1.0] * 7 + [1.3])
    slow = [pipeline.ranks for pipeline in made.pipelines if pipeline.slowdown > 1]
    kept = [pipeline.ranks for pipeline in measurable(made)]
    assert slow[0] not in kept
    assert len(kept) == len(made.pipelines) - 1


def test_a_proposal_is_planned_around_slow_ranks_without_regrouping() -> None:
    profile = find_profile("llama3-8b-h100-80gb").keep_modes({"none", "full"})
    proposal = make_proposal(profile, Workload(8, 32_768, 100_000), CODE[CODE <= 32_768][:3_000])
    planner = Planner.from_proposal(proposal, slowdown=[1.0] * 7 + [1.5])
    proposed = {(s.tp, s.pp) for of in proposal.candidates for s, _ in of.strategy.counts}
    for seed in range(4):
        pipelines = planner.plan(draw(100_000, seed)).pipelines
        assert {(p.scheme.tp, p.scheme.pp) for p in pipelines} <= proposed
    made = planner.plan(draw(100_000, 2))
    assert not made.regroups
    assert max(pipeline.slowdown for pipeline in made.pipelines) == 1.5
    proven = planner.prove(made)
    assert proven.pipelines == made.pipelines
    assert proven.gap <= made.gap


@pytest.mark.parametrize(
    ("slowdown", "message"),
    [
        (((9, 1.5),), "slowdown of rank 9: ranks are 0 to 7. Name one"),
        (((1, 1.5), (1, 1.2)), "slowdown: a rank is there twice. Name each once"),
    ],
)
def test_ranks_that_cannot_be(slowdown: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list_factors(slowdown, 8)


def compute_times(planned: Plan, true: list[float], rng: np.random.Generator) -> list[float]:
    """Times that ranks of these true factors compute, each group as long as its slowest."""
    measured = [0.0] * planned.world_size
    for pipeline in planned.pipelines:
        alone = sum(batch.cost_ms for batch in pipeline.micro_batches) / pipeline.slowdown
        taken = alone * max(true[rank] for rank in pipeline.ranks)
        for rank in pipeline.ranks:
            measured[rank] += taken * float(rng.normal(1, 0.03))
    return measured


def test_a_planner_plans_around_ranks_that_it_observes() -> None:
    planner = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768)
    rng, true = np.random.default_rng(0), [1.0] * 6 + [1.4, 1.0]
    plans = [planner.plan(draw(200_000, seed)) for seed in range(8)]
    for planned in plans * 8:
        factors = planner.observe(planned, compute_times(planned, true, rng))
    assert factors[6] == pytest.approx(1.4, rel=0.03)
    after = planner.plan(draw(200_000, 0))
    slow = [pipeline for pipeline in after.pipelines if pipeline.slowdown > 1]
    assert any(6 in pipeline.ranks for pipeline in slow)
    longest = max(
        max(true[rank] for rank in pipeline.ranks)
        * sum(batch.cost_ms for batch in pipeline.micro_batches)
        for pipeline in plans[0].pipelines
    )
    assert after.predicted_ms < longest
    planner.observe(after, [*compute_times(after, true, rng)[:7], None])
    assert planner.plan(draw(200_000, 0)).lost_ranks == (7,)


def test_observed_factors_start_from_those_that_are_given() -> None:
    """A rank that is lost from the start stays lost; others are found slow all the same."""
    planner = Planner.from_profile(
        "llama3-8b-h100-80gb", 8, 32_768, slowdown=[1.0] * 7 + [None], prove=False
    )
    rng, true = np.random.default_rng(0), [1.0] * 8
    plans = [planner.plan(draw(200_000, seed)) for seed in range(8)]
    slow = plans[0].pipelines[-1].ranks[0]  # of the smallest group
    true[slow] = 1.4
    for planned in plans * 8:
        factors = planner.observe(planned, [*compute_times(planned, true, rng)[:7], None])
    assert factors[slow] == pytest.approx(1.4, rel=0.03)
    assert factors[7] is None
    after = planner.plan(draw(200_000, 0))
    assert after.lost_ranks == (7,)
    assert any(slow in p.ranks and p.slowdown > 1 for p in after.pipelines)


def test_plans_made_ahead_do_not_raise_a_factor_again() -> None:
    """Steps that were planned before a factor was found are measured after it."""
    profile = find_profile("llama3-8b-h100-80gb").keep_modes({"none", "full"})
    planner = Planner.from_profile(profile, 8, 32_768, prove=False)
    rng, true = np.random.default_rng(0), [1.0] * 8
    true[6], ahead = 1.4, [planner.plan(draw(100_000, seed)) for seed in range(24)]
    for seed in range(24, 88):
        ahead.append(planner.plan(draw(100_000, seed)))
        planned = ahead.pop(0)
        factors = planner.observe(planned, compute_times(planned, true, rng))
        assert factors[6] in (1.0, pytest.approx(1.4, rel=0.04))
    assert factors[6] == pytest.approx(1.4, rel=0.04)


def test_what_cannot_be_observed_is_rejected() -> None:
    given = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768)
    nothing: Any = None
    with pytest.raises(TypeError, match="plan: None"):
        given.observe(nothing, [1.0] * 8)
    other = Planner.from_profile("llama3-8b-h100-80gb", 4, 8_192).plan([900])
    with pytest.raises(ValueError, match=r"plan: of 4 ranks\. Give one of 8"):
        given.observe(other, [1.0] * 4)
    lockstep = Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768, execution="lockstep")
    planned = lockstep.plan([4_000] * 8)
    with pytest.raises(OptionError, match="slowdown is for pipelines: the problem is in lockstep"):
        lockstep.observe(planned, [1.0] * 8)


@pytest.mark.parametrize("lost", [(3, 4, 5, 6), (1, 2, 5, 6), (3, 5, 7), (5, 7), (2, 3, 4, 5)])
def test_lost_ranks_between_blocks_leave_smaller_groups(lost: tuple[int, ...]) -> None:
    """No plan is slower than that of single ranks; no more ranks are idle than groups need."""
    lengths, left = [9000, 5000] + [600] * 40, 8 - len(lost)
    whole = find_profile("llama3-8b-h100-80gb")

    def plan_of(profile: Profile, gpus: int, slowdown: list[float | None] | None) -> Plan:
        planner = Planner.from_profile(
            profile, gpus, 16_384, sync=None, execution="static", slowdown=slowdown
        )
        return planner.plan(lengths)

    around = plan_of(whole, 8, [None if rank in lost else 1.0 for rank in range(8)])
    single = plan_of(whole.keep_schemes({Scheme()}), left, None)
    assert around.lost_ranks == lost
    assert around.predicted_ms <= single.predicted_ms
    check_plan(around, Workload(left, 16_384, 16_384).models(whole))


def test_lost_ranks_that_leave_no_block_are_named() -> None:
    slowdown = [None if rank in (1, 2, 5, 6) else 1.0 for rank in range(8)]
    planner = Planner.from_profile(
        "llama3-8b-h100-80gb", 8, 16_384, layout="tp2", slowdown=slowdown
    )
    with pytest.raises(Infeasible, match="blocks of ranks that are aligned to their size"):
        planner.plan([900, 500])


def test_groups_are_split_where_lost_ranks_leave_no_block() -> None:
    schemes = [Scheme(), Scheme(ulysses=2), Scheme(ulysses=4), Scheme(tp=2)]
    factors = tuple(None if rank in (3, 5, 7) else 1.0 for rank in range(8))
    fitted = Slowdown(factors).fit(Strategy.parse("1×u4 + 1×tp1"), schemes)
    assert str(fitted) == "1×u2 + 3×tp1"
    assert str(Slowdown(factors).fit(Strategy.parse("2×tp2"), schemes)) == "1×tp2"


def test_rings_of_three_take_free_ranks_next_to_lost_ones() -> None:
    whole = find_profile("llama3-8b-h100-80gb")
    of_two = next(e for e in whole.document["schemes"] if e.get("ring") == 2 and len(e) == 3)
    document = {**whole.document, "schemes": [{**of_two, "ring": 3}]}
    profile = Profile.from_document(document, "rings of three")
    slowdown: list[float | None] = [None, 1, 1, None, 1, 1, 1, 1]
    made = Planner.from_profile(profile, 8, 32_768, slowdown=slowdown).plan([30_000, 900])
    assert [pipeline.ranks for pipeline in made.pipelines] == [(4, 5, 6)]
    with pytest.raises(Infeasible, match=r"ranks lost: \[0, 3, 6\]"):
        Planner.from_profile(profile, 8, 32_768, slowdown=[None, 1, 1, None, 1, 1, None, 1]).plan(
            [900]
        )
