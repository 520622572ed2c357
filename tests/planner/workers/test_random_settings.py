"""Plans for random profiles, clusters, strategies and lengths: always sound, never optimistic."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from producer_cases import proposal

from seqplan import (
    Batch,
    Plan,
    Profile,
    Proposal,
    Scheme,
    StepPlanner,
    Strategy,
    Workload,
    from_json,
    make_proposal,
    rank_view,
    to_json,
)
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.proposal.make_proposal import METHODS
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans.lint import lint

DEGREES = st.sampled_from([1, 1, 1, 2, 3, 4, 5])
COEFFICIENT = st.sampled_from([0.0, 1e-6, 3e-5, 1e-3])


@st.composite
def profiles(draw: st.DrawFn, lockstep: bool) -> Profile:
    """A profile of one to five schemes; some coefficients are 0, memory is tight or ample."""
    schemes: dict[tuple[int, ...], dict[str, Any]] = {}
    for _ in range(draw(st.integers(1, 5))):
        tp, pp = (1, 1) if lockstep else (draw(DEGREES), draw(DEGREES))
        degrees = (tp, pp, draw(DEGREES), draw(DEGREES))
        names = ("tp", "pp", "ulysses", "ring")
        schemes[degrees] = {
            **dict(zip(names, degrees, strict=True)),
            "a": draw(COEFFICIENT),
            "b": draw(st.sampled_from([0.005, 0.05, 0.3])),
            "c": draw(st.sampled_from([0.0, 0.3, 20.0])),
        }
    document = {
        "schema": 2,
        "name": "random",
        "source": "made for a test",
        "residuals": "none: exact",
        "hardware": {"gpu": "none", "gpus_per_node": 3600},  # a multiple of all tp·ulysses
        "model": {"hidden": 64, "layers": 60},
        "zero_stage": 3 if lockstep else draw(st.sampled_from([1, 2])),
        "forward_fraction": draw(st.sampled_from([0.2, 1 / 3, 0.7])),
        "memory": {
            "capacity_bytes": draw(st.integers(100, 5000)) * 1000,
            "context_bytes": 0,
            "margin_bytes": 0,
            "sharded_state_bytes": [[None, 1e5]],
            "resident_layer_bytes": 0 if lockstep else 4e4,
            "resident_embedding_bytes": 0 if lockstep else 2e3,
            "activation_bytes_per_token": {str(tp): 1000 for tp in range(1, 6)},
        },
        "schemes": list(schemes.values()),
    }
    return Profile.from_document(document, "random")


@st.composite
def cases(draw: st.DrawFn, lockstep: bool) -> tuple[Proposal, Batch]:
    """A proposal of random strategies and a batch that at least one of them holds."""
    profile = draw(profiles(lockstep))
    smallest = min(entry.scheme.gpus for entry in profile.schemes)
    workload = Workload(draw(st.integers(smallest, smallest + 24)), 10_000, 10_000)
    models = {s: m for s, m in workload.models(profile).items() if m.max_sequence >= 1}
    if not models:
        return draw(cases(lockstep))
    strategies = set()
    for _ in range(draw(st.integers(1, 4))):
        left, counts = workload.gpus, Counter[Scheme]()
        for scheme in draw(st.permutations(sorted(models))):
            most = left // scheme.gpus
            count = draw(st.integers(0 if counts else min(1, most), min(most, 4)))
            counts[scheme] += count
            left -= count * scheme.gpus
        if counts.total():
            strategies.add(str(Strategy.from_counts(counts)))
    document = proposal(profile, workload, sorted(strategies))
    if lockstep:
        longest = max(model.max_sequence for model in models.values())
    else:
        longest = max(candidate.max_sequence for candidate in document.candidates)
    length = st.one_of(st.integers(1, min(longest, 10_000)), st.integers(1, min(longest, 40)))
    lengths = draw(st.lists(length, min_size=1, max_size=24))
    ids = draw(st.lists(st.integers(0, 10**9), min_size=len(lengths), max_size=len(lengths)))
    return document, Batch(draw(st.integers(0, 10**6)), tuple(ids), tuple(lengths))


def check(plan: Plan, document: Proposal, batch: Batch) -> None:
    """Every promise of a plan that can be checked without the planner."""
    assert lint(plan, document.workload.models(document.profile)) == []
    assert simulate_plan_ms(plan, document.profile.forward_fraction) <= plan.predicted_ms + 1e-3
    assert (plan.ids, plan.lengths, plan.step) == (batch.ids, batch.lengths, batch.step)
    placed = [i for p in plan.pipelines for m in p.micro_batches for i in m.sequences]
    assert sorted(placed) == list(range(len(batch.lengths)))
    assert sum(m.tokens for p in plan.pipelines for m in p.micro_batches) == batch.tokens
    assert plan.world_size == document.workload.gpus
    assert from_json(to_json(plan)) == plan
    held = 0
    for rank in range(plan.world_size):
        view = rank_view(plan, rank)
        held += sum(
            micro.local_tokens
            for mine in view.pipelines
            for micro in mine.micro_batches
            if mine.at.tp == 0 and mine.at.pp == 0
        )
    assert held == batch.tokens


@pytest.mark.parametrize("lockstep", [False, True])
def test_plans_are_sound(lockstep: bool) -> None:
    @settings(
        max_examples=25,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(cases(lockstep))
    def sound(case: tuple[Proposal, Batch]) -> None:
        document, batch = case
        plan = StepPlanner(document).plan(batch)
        check(plan, document, batch)
        # What a worker gets is the document as text.
        again = Proposal.from_json(document.to_json(), "proposal")
        assert to_json(StepPlanner(again).plan(batch)) == to_json(plan)

    sound()


@pytest.mark.parametrize(
    ("lockstep", "method"), [(False, METHODS[0]), (False, METHODS[1]), (True, METHODS[0])]
)
def test_proposals_and_their_plans_are_sound(lockstep: bool, method: str) -> None:
    @settings(
        max_examples=3,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(profiles(lockstep), st.integers(0, 6), st.integers(0, 2**32))
    def sound(profile: Profile, more: int, seed: int) -> None:
        gpus = min(entry.scheme.gpus for entry in profile.schemes) + more
        models = Workload(gpus, 10_000, 1).models(profile).values()
        longest = max((model.max_sequence for model in models), default=0)
        assume(longest)
        rng = np.random.default_rng(seed)
        lengths = np.clip(rng.lognormal(4, 2, 200).astype(np.int64) + 1, None, min(longest, 4000))
        workload = Workload(gpus, longest, int(lengths.max()) + 500)
        document = make_proposal(profile, workload, lengths, seed=seed, method=method, sync=None)
        assert 0 < document.lower_bound_ms <= document.expected_ms + 1e-3
        assert Proposal.from_json(document.to_json(), "proposal") == document
        for batch in Sampler(lengths, workload.tokens, longest, seed).batches(2):
            check(StepPlanner(document).plan(batch), document, batch)

    sound()
