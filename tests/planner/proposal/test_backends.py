"""What each trainer runs: schemes, ZeRO stages, lockstep, and what its users run today."""

import numpy as np
import pytest
from settings_made import CODE

from seqplan import Infeasible, Planner, Proposal, Scheme, StepPlanner, Workload, make_proposal
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.comparison.compare import Options, compare
from seqplan.planner.proposal.backends import BACKENDS, find_backend
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import LayoutSyncTimes, layouts_of
from seqplan.plans.lint import lint

CLUSTER = Workload(8, 8192, 30_000)
H100, A800, A100 = "llama3-8b-h100-80gb", "llama-7b-a800-80gb", "gpt-7b-a100-40gb"


def test_names_are_those_of_the_option() -> None:
    assert list(BACKENDS) == [
        *("seqplan", "seqplan-huggingface", "transformers"),
        *("megatron", "verl-fsdp", "verl-megatron"),
    ]
    with pytest.raises(ValueError, match=r"trainer must be one of seqplan, seqplan-.*: 'trl'"):
        find_backend("trl")


@pytest.mark.parametrize("name", BACKENDS)
def test_plans_have_only_schemes_of_the_trainer(name: str) -> None:
    backend = BACKENDS[name]
    proposal = make_proposal(load_shipped(H100).keep_modes({"none"}), CLUSTER, CODE, trainer=name)
    assert proposal.trainer == name
    assert Proposal.from_json(proposal.to_json(), "again").digest == proposal.digest
    assert proposal.profile.zero_stage in backend.zero_stages
    assert proposal.in_lockstep == (proposal.profile.lockstep or proposal.execution == "lockstep")
    assert proposal.execution in backend.executions
    planner, used = StepPlanner(proposal), set()
    for batch in Sampler(CODE, CLUSTER.tokens, CLUSTER.max_len, 0).batches(3):
        plan = planner.plan(batch)
        assert lint(plan, CLUSTER.models(proposal.profile)) == []
        used |= {pipeline.scheme for pipeline in plan.pipelines}
    assert all(backend.runs(scheme) for scheme in used)
    if backend.uniform:
        assert len(used) == len(proposal.profile.schemes) == 1
    if name == "transformers":
        assert used == {Scheme()}


@pytest.mark.parametrize("name", ["seqplan-huggingface", "megatron", "verl-megatron"])
def test_plans_for_a_trainer_are_of_the_whole_profile(name: str) -> None:
    """Whoever has the profile's name can check the plan's costs."""
    whole = load_shipped(A800)
    for profile in (whole, whole.restrict(measured=True), whole.restrict(layout=(4, 1))):
        if profile is not whole and name == "seqplan-huggingface":
            continue  # it runs none of these
        proposal = make_proposal(profile, CLUSTER, CODE, trainer=name)
        found = whole.with_digest(proposal.profile.digest)
        assert found.by_scheme.keys() == proposal.profile.by_scheme.keys()


def test_profile_of_another_zero_stage_is_derived_anew_or_rejected() -> None:
    fsdp = find_backend("transformers")
    anew = fsdp.usable_profile(load_shipped(H100), 16)
    assert (anew.zero_stage, [entry.scheme for entry in anew.schemes]) == (3, [Scheme()])
    with pytest.raises(ProfileError, match="is of ZeRO-1, but transformers runs ZeRO-3"):
        fsdp.usable_profile(load_shipped(A800), 16)
    with pytest.raises(ProfileError, match="is of ZeRO-3, but megatron runs ZeRO-1 or ZeRO-2"):
        find_backend("megatron").usable_profile(load_shipped(A100), 16)
    with pytest.raises(
        ProfileError, match=r"has no scheme that seqplan-huggingface runs \(only ul"
    ):
        find_backend("seqplan-huggingface").usable_profile(
            load_shipped(A800).restrict(layout=(8, 1)), 16
        )
    assert find_backend("seqplan").usable_profile(load_shipped(A100), 16) == load_shipped(A100)


def test_data_that_the_trainer_cannot_hold_is_infeasible() -> None:
    """One GPU has to hold the longest sequence if ranks are data parallel only."""
    profile = load_shipped(H100).keep_modes({"none"})
    with pytest.raises(Infeasible, match=r"holds is \d+ \(tp1\); use --max-len"):
        make_proposal(profile, Workload(16, 32_768, 60_000), CODE, trainer="transformers")


@pytest.mark.parametrize(
    ("name", "profile", "key"),
    [
        ("transformers", H100, "trl"),
        ("verl-fsdp", A100, "verl"),
        ("verl-megatron", A800, "verl"),
        ("megatron", A800, "megatron-dcp"),
        ("seqplan-huggingface", A800, "trl"),
        ("seqplan", A800, "static"),
    ],
)
def test_baseline_of_the_trainer_is_compared(name: str, profile: str, key: str) -> None:
    whole = load_shipped(profile)
    if name == "seqplan":  # it runs all schemes: fewer show as much
        whole = whole.restrict(measured=True)
    options = Options(("static", "verl", "trainers", "megatron-dcp", "deepspeed", "flexsp"))
    sync = choose_sync(whole, CLUSTER.gpus)
    compared = compare(whole, CLUSTER, CODE, 2, sync, options=options, trainer=name)
    assert compared.today is not None
    label, system = compared.today
    assert system.key == key
    assert label == f"{BACKENDS[name].baseline_name}, as users of {name} run today"
    if BACKENDS[name].uniform:  # our balancing of one scheme is what the plans are, and no rival
        assert not any(system.balanced for system in compared.systems[1:])
        assert all(len(step.schemes) == 1 for s in compared.systems[1:] for step in s.iterations)
        assert "flexsp" not in {system.key for system in compared.systems}
    steps = [step for system in compared.systems for step in system.iterations]
    assert all(BACKENDS[name].runs(scheme) for step in steps for scheme, _ in step.schemes)
    assert system.mean_ms >= compared.ours.mean_ms * 0.99


def test_planner_in_a_program_has_only_schemes_of_the_trainer() -> None:
    lengths = CODE.clip(max=8192)[:30].tolist()
    for name in ("seqplan-huggingface", "megatron"):
        plan = Planner.from_profile(load_shipped(A800), gpus=8, max_len=8192, trainer=name).plan(
            lengths
        )
        assert all(BACKENDS[name].runs(pipeline.scheme) for pipeline in plan.pipelines)
        micro_steps = {pipeline.micro_step for pipeline in plan.pipelines}
        assert (micro_steps != {None}) == (BACKENDS[name].executions[0] == "lockstep")
    with pytest.raises(ValueError, match="trainer 'verl-megatron' runs one scheme, which a propos"):
        Planner.from_profile(load_shipped(A800), gpus=8, max_len=8192, trainer="verl-megatron")


def test_uniform_execution_keeps_the_best_static_scheme() -> None:
    cluster, profile = CLUSTER, load_shipped(A800).restrict(measured=True)
    sync = choose_sync(profile, cluster.gpus)
    proposal = make_proposal(profile, cluster, CODE, sync=sync, execution="uniform")
    (entry,) = proposal.profile.schemes
    assert proposal.execution == "uniform"
    assert not proposal.in_lockstep
    assert Proposal.from_json(proposal.to_json(), "again") == proposal
    planner = StepPlanner(proposal)
    batches = list(Sampler(CODE, cluster.tokens, cluster.max_len, 0).batches(4))
    for plan in map(planner.plan, batches):
        assert {pipeline.scheme for pipeline in plan.pipelines} == {entry.scheme}
        assert not plan.regroups
        assert {pipeline.micro_step for pipeline in plan.pipelines} == {None}
        assert lint(plan, cluster.models(proposal.profile)) == []
    options = Options(("static",))
    compared = compare(profile, cluster, CODE, 4, sync, options=options)
    static = next(system for system in compared.systems if system.key == "static")
    assert static.iterations[0].schemes[0][0] == entry.scheme


def test_megatron_syncs_by_collectives() -> None:
    """Also when it is planned for without a data set."""
    lengths = np.random.default_rng(0).integers(100, 8_000, 400)
    profile, workload = load_shipped(A800).restrict(measured=True), Workload(16, 8_192, 60_000)
    for trainer in (None, "megatron"):
        sync = make_proposal(profile, workload, lengths, trainer=trainer).sync
        assert isinstance(sync, LayoutSyncTimes)
        assert sync.collectives == (trainer is not None)
        planner = Planner.from_profile(profile, 16, 8_192, trainer=trainer)
        plan = planner.plan(lengths[:40].tolist())
        layouts = layouts_of(pipeline.scheme for pipeline in plan.pipelines)
        assert plan.sync_ms == pytest.approx(sync.compute_exposed_ms(layouts), abs=0.01)
