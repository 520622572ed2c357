"""Plans whose micro-batches have recomputation modes, in every kind of execution."""

from functools import cache

import numpy as np
import pytest
from deployments import deploy

from seqplan import (
    Batch,
    Plan,
    Planner,
    Profile,
    Scheme,
    StepPlanner,
    Workload,
    explain,
    from_json,
    make_proposal,
    to_json,
)
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.simulation.iteration import Execution, simulate_iteration
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.sync.times import NO_SYNC
from seqplan.plans.lint import lint
from seqplan.plans.recomputation import MODES

WHOLE = load_shipped("llama3-8b-h100-80gb")
H100 = WHOLE.keep_schemes({Scheme(), Scheme(tp=2), Scheme(tp=4), Scheme(tp=8), Scheme(tp=2, pp=2)})
PROFILES = {
    names: H100.keep_modes(names.split(","))
    for names in ("full", "none,full", "none,elementwise,full")
}
ONE, TWO, THREE = PROFILES
LENGTHS = np.clip(np.exp(np.random.default_rng(5).normal(6.6, 1.5, 20_000)), 16, 131_072).astype(
    np.int64
)
LENGTHS[:4] = 131_072
CLUSTER = Workload(8, 131_072, 200_000)


@cache
def _plans(modes: str, execution: ExecutionKind, packing: str = "tight") -> list[Plan]:
    proposal = make_proposal(PROFILES[modes], CLUSTER, LENGTHS, execution=execution)
    planner = StepPlanner(proposal, PlanningOptions(packing=packing))
    lengths = LENGTHS.copy()
    np.random.default_rng(1).shuffle(lengths[4:])
    batches = Sampler(lengths, CLUSTER.tokens, CLUSTER.max_len, 0).batches(2)
    return [planner.plan(batch) for batch in batches]


def _check(plan: Plan, profile: Profile, models: dict[object, SchemeModel]) -> None:
    assert lint(plan, models) == []  # type: ignore[arg-type]
    assert plan.predicted_ms >= simulate_plan_ms(plan, profile.forward_fraction) - 1e-2
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize("execution", ["static", "regroup", "uniform", "lockstep"])
def test_plans_are_sound_and_no_slower_than_with_one_mode(execution: ExecutionKind) -> None:
    models = CLUSTER.models(PROFILES[THREE])
    planned = _plans(THREE, execution)
    assert {
        micro.recompute for plan in planned for p in plan.pipelines for micro in p.micro_batches
    } <= set(MODES)
    for plan in planned:
        _check(plan, PROFILES[THREE], dict(models))
    of_one = _plans(ONE, execution)
    assert all(
        m.recompute is None for plan in of_one for p in plan.pipelines for m in p.micro_batches
    )
    mean_ms, one_ms = (
        np.mean([plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans])
        for plans in (planned, of_one)
    )
    assert mean_ms <= 1.001 * one_ms


def test_even_packing_keeps_micro_batches_in_their_modes() -> None:
    tight, even = (_plans(TWO, "uniform", packing) for packing in ("tight", "even"))
    for plan, other in zip(tight, even, strict=True):
        _check(other, PROFILES[TWO], dict(CLUSTER.models(PROFILES[TWO])))
        assert other.predicted_ms == pytest.approx(plan.predicted_ms, rel=1e-3)


def test_explain_states_what_recomputation_costs() -> None:
    """Only the long sequence recomputes."""
    profile = PROFILES[TWO].keep_schemes({Scheme(tp=4)})
    models = Workload(8, 65_536, 131_072).models(profile)
    lengths = [60_000, *[2_000] * 20]
    batch = Batch.from_lengths(lengths)
    planner = Planner.from_profile(profile, gpus=8, max_len=65_536, execution="static", sync=None)
    text = explain(planner.plan(list(batch.lengths)), models)
    (line,) = [line for line in text.splitlines() if line.startswith("recomputation: ")]
    assert " full of " in line, text
    assert "% of the GPU-time; without it no scheme holds the largest, 60,000 tokens" in text


def test_same_inputs_give_the_same_bytes() -> None:
    first = _plans(TWO, "uniform")
    _plans.cache_clear()
    assert [to_json(plan) for plan in first] == [to_json(plan) for plan in _plans(TWO, "uniform")]


def test_an_iteration_counts_the_micro_batches_of_each_mode() -> None:
    plan = _plans("none,full", "static")[0]
    batch = Batch.from_lengths(plan.lengths)
    iteration = simulate_iteration(
        batch, Execution.from_plan(plan), PROFILES["none,full"], 8, NO_SYNC
    )
    batches = [(p.scheme.gpus, b) for p in plan.pipelines for b in p.micro_batches]
    assert [mode.name for mode in iteration.modes] == ["none", "full"]
    for mode in iteration.modes:
        mine = [(gpus, b) for gpus, b in batches if b.recompute == mode.name]
        assert (mode.micro_batches, mode.tokens) == (len(mine), sum(b.tokens for _, b in mine))
        assert mode.gpu_ms == pytest.approx(sum(gpus * b.cost_ms for gpus, b in mine))


def test_offload_is_planned_and_written() -> None:
    """It holds more at no cost, so that plans are faster."""
    deployment = deploy("llama3-8b", "h100-80gb", 1, loss="chunked", host_memory_bytes=100e9)
    modes = ["none", "elementwise", "elementwise+0.5", "elementwise+1", "full"]
    document = derive_profile(deployment, list(H100.by_scheme), name="host", modes=modes)
    profile = Profile.from_document(document, "host")
    for execution in ("static", "regroup", "lockstep"):
        planner = Planner.from_profile(profile, 8, 131_072, execution=execution)
        without = Planner.from_profile(
            profile.keep_modes({"none", "elementwise", "full"}), 8, 131_072, execution=execution
        )
        models = {model.scheme: model for model in profile.usable(8, 131_072)}
        lengths = [100_000, 60_000, 30_000, 20_000, *[4000] * 20]
        plan, other = planner.plan(lengths), without.plan(lengths)
        assert lint(plan, models) == []
        assert from_json(to_json(plan)) == plan
        assert plan.predicted_ms < other.predicted_ms
        used = {b.recompute for p in plan.pipelines for b in p.micro_batches}
        assert used & {"elementwise+0.5", "elementwise+1"}
        assert '"offload_layers":' in to_json(plan)
        assert "elementwise+" in explain(plan, models)


def test_a_mode_with_less_overhead_holds_a_sequence_that_others_do_not() -> None:
    """A full micro-batch of the second mode takes less than the overhead of the first."""
    bytes_of = {"none": 2400.0, "mlp": 1000.0}
    coefficients = {"none": {"a": 0.0, "b": 6.6, "c": 500.0}, "mlp": {"a": 0.0, "b": 8.0, "c": 1.0}}
    document = {
        "schema": 2,
        "name": "small",
        "source": "a test",
        "residuals": "none",
        "hardware": {"gpu": "small", "gpus_per_node": 8},
        "model": {"hidden": 64, "layers": 12},
        "zero_stage": 1,
        "memory": {
            "capacity_bytes": 33_000.0,
            "context_bytes": 0.0,
            "margin_bytes": 0.0,
            "sharded_state_bytes": [[None, 0.0]],
            "resident_layer_bytes": 0.0,
            "resident_embedding_bytes": 0.0,
        },
        "modes": [
            {
                "name": name,
                "forward_fraction": 1 / 3,
                "kept_bytes_per_token": {"1": kept},
                "transient_bytes_per_token": {"1": 0.0},
            }
            for name, kept in bytes_of.items()
        ],
        "schemes": [{"pp": 2, "modes": coefficients}],
    }
    profile = Profile.from_document(document, "small")
    plan = Planner.from_profile(profile, 2, 23, sync=None).plan([23])
    assert plan.predicted_ms == pytest.approx((23 * 8 + 1) * 2)
