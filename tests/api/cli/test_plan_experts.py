"""Plans from data whose profile splits experts, and what they are compared with."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import call, succeeded
from expert_profiles import make_expert_profile

from seqplan import Batch, Infeasible, Profile, Scheme, StepPlanner, Workload
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.derived.model_profiles import derive_model_profile, list_expert_degrees
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.comparison.compare import compare
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.proposal.backends import find_backend
from seqplan.planner.simulation.iteration import compute_ms
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.systems.setting import Setting
from seqplan.planner.systems.static_experts import find_static_expert_run

GPUS, CONTEXT, TOKENS = 4, 2048, 30_000
LENGTHS = np.random.default_rng(1).lognormal(6, 0.8, 2000).astype(int).clip(16, CONTEXT)
WORKLOAD = Workload(gpus=GPUS, max_len=CONTEXT, tokens=TOKENS)
BATCHES = list(Sampler(LENGTHS, TOKENS, CONTEXT, 0).batches(2))
LONGEST = int(LENGTHS.max())
PROFILE = make_expert_profile({1: 0.0, 2: 0.3, 4: 0.4})


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    lengths, profile = tmp_path / "lengths.npy", tmp_path / "profile.json"
    np.save(lengths, LENGTHS)
    profile.write_text(json.dumps(dict(make_expert_profile({2: 0.3, 4: 0.4}).document)))
    return lengths, profile


def test_steps_are_planned_explained_and_proven(files: tuple[Path, Path], tmp_path: Path) -> None:
    lengths, profile = files
    plans = tmp_path / "plans.jsonl"
    options = ("--profile", profile, "--gpus", GPUS, "--max-len", CONTEXT, "--tokens", TOKENS)
    text = succeeded(call("plan", lengths, *options, "--steps", 2, "-o", plans))
    assert "Experts on " in text
    assert "over the best static run, Best static strategy, balanced: " in text
    degree = json.loads(plans.read_text().splitlines()[0])["expert_parallel"]
    text = succeeded(call("check", "plans", plans, "--profile", profile, "--prove"))
    assert "2 plans, no broken rules, every bound proven" in text
    text = succeeded(call("explain", plans, "--profile", profile, "--step", 0))
    assert f"experts on {degree} ranks" in text
    assert "  time ms counts the experts' work of a pipeline's tokens; ranks of a block" in text
    succeeded(call("trace", plans, "--step", 1, "-o", tmp_path / "trace.json"))
    text = succeeded(call("propose", lengths, *options, "--schemes", "ep2"))
    assert "Experts on 2 ranks: " in text


def test_a_comparison_states_the_degrees_and_leaves_systems_out() -> None:
    comparison = compare(PROFILE, WORKLOAD, LENGTHS, 2, choose_sync(PROFILE, GPUS))
    degree = find_static(PROFILE).profile.expert_parallel
    assert f"and on {degree} in the other systems" in comparison.assumptions[-1]
    assert {"hotspa", "flexsp", "megatron-dcp"} <= {name for name, _ in comparison.left_out}
    ours, static, *others = comparison.systems
    assert static.key == "static"
    assert {"megatron", "verl", "trl"} <= {system.key for system in others}
    assert ours.mean_ms / 1.001 <= static.mean_ms <= min(system.mean_ms for system in others)
    assert comparison.survival


def test_the_static_run_is_the_fastest_of_all_degrees_modes_and_schemes() -> None:
    times = {}
    for degree in PROFILE.expert_degrees:
        at_degree = PROFILE.at_expert_parallel(degree)
        for mode in at_degree.modes:
            of_mode = at_degree.keep_modes({mode.name})
            for entry in of_mode.schemes:
                kept = of_mode.keep_schemes({entry.scheme})
                with suppress(Infeasible):
                    times[degree, mode.name, entry.scheme] = time_static(kept)
    best = find_static(PROFILE)
    ((scheme, _),) = best.models.items()
    found = best.profile.expert_parallel, best.profile.modes[0].name, scheme
    assert times[found] == min(times.values())


def find_static(profile: Profile) -> PlanningProblem:
    found = find_static_expert_run(
        profile, WORKLOAD, BATCHES, LONGEST, choose_sync(profile, GPUS), lockstep=False
    )
    assert found is not None
    return found


def time_static(profile: Profile) -> float:
    problem = PlanningProblem(
        profile=profile, workload=WORKLOAD, sync=choose_sync(profile, GPUS), execution="static"
    )
    planner = StepPlanner(problem, PlanningOptions(prove=False))
    plans = [planner.plan(batch) for batch in BATCHES]
    return sum(plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans) / len(plans)


def test_a_static_run_of_whole_blocks_takes_as_long_as_without_blocks() -> None:
    """Pipelines of whole blocks share nothing, so the same costs give the same times."""
    plain, split = make_expert_profile({1: 0.0}), make_expert_profile({4: 0.4})
    scheme = Scheme(ring=4)
    times = []
    for profile in (plain, split):
        setting = Setting(profile.keep_schemes({scheme}), WORKLOAD, tuple(BATCHES), LONGEST)
        execution = setting.replicas(BATCHES[0], scheme, [[[0, 1], [2]]])
        times.append([micro.shared_ms for micro in next(execution.pipelines).micro_batches])
    assert times[0] == times[1] == [0.0, 0.0]


def test_ranks_of_a_block_share_in_compared_systems() -> None:
    """Four ranks with one micro-batch each: the local part of the longest, the mean shared part."""
    profile = make_expert_profile({4: 0.4})
    mode = profile.keep_modes({profile.modes[0].name})
    setting = Setting(mode, WORKLOAD, tuple(BATCHES), LONGEST)
    batch = Batch.from_lengths([2048, 512, 512, 512])
    execution = setting.replicas(batch, Scheme(), [[[0]], [[1]], [[2]], [[3]]])
    latency = setting.models[Scheme()].latency
    local = latency.micro_batch_ms([2048]) - latency.b_shared * 2048
    expected = local + latency.b_shared * (2048 + 3 * 512) / 4
    assert compute_ms(execution.phases, setting.forward_fraction, 4) == pytest.approx(
        expected, abs=0.01
    )


def test_a_derived_profile_has_the_degrees_that_hold_the_data() -> None:
    layers = {"layers": 10, "expert_layers": 10}
    sizes = ModelSizes.from_mapping({**MODELS["qwen3-30b-a3b"], **layers})
    cluster = ClusterHardware(DEVICES["h100-80gb"], 4, 1)
    assert list_expert_degrees(sizes.shape, cluster) == [1, 2, 4]
    assert derive_model_profile(sizes, cluster, name="few").expert_degrees == (1,)
    every = derive_model_profile(sizes, cluster, name="few", longest=1)
    reach = {
        degree: max(m.max_sequence for m in every.at_expert_parallel(degree).usable(GPUS, CONTEXT))
        for degree in every.expert_degrees
    }
    assert len(set(reach.values())) > 1
    longest = min(reach.values()) + 1
    fewer = derive_model_profile(sizes, cluster, name="few", longest=longest)
    assert fewer.expert_degrees == tuple(d for d, tokens in reach.items() if tokens >= longest)


def test_a_trainer_that_keeps_experts_whole_takes_their_entries() -> None:
    assert not find_backend("transformers").splits_experts
    split = make_expert_profile({1: 0.0, 4: 0.4})
    assert find_backend("megatron").usable_profile(split, GPUS).expert_degrees == (1, 4)
    verl = replace(find_backend("verl-fsdp"), zero_stages=(1,))
    assert verl.usable_profile(split, GPUS).expert_degrees == (1,)
    with pytest.raises(ProfileError, match="its experts are on 4 ranks, and verl-fsdp keeps them"):
        verl.usable_profile(make_expert_profile({4: 0.4}), GPUS)
