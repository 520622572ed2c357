"""The best static strategies that search finds, with our dispatch and packing.

The difference between them and dynamic plans is the worth of different pipelines (homogeneous) and
of choosing anew at every step (heterogeneous).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from seqplan.planner.problem import PlanningProblem
from seqplan.planner.proposal.static_micro_steps import best_static_micro_steps
from seqplan.planner.simulation.iteration import Execution, compute_ms
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.strategies.homogeneous import (
    TIMED_WITHIN,
    best_homogeneous,
    estimate_means_ms,
    promising_homogeneous,
)
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_experts import QUICK, SAMPLED, find_static_expert_run
from seqplan.plans.scheme import Strategy


def static_best(setting: Setting, candidates: Sequence[Strategy]) -> list[ComparedSystem | Skipped]:
    """Set up the best homogeneous strategy, and the best of ``candidates``, kept throughout."""
    if setting.static_experts is not None:
        return [_with_experts(setting, setting.static_experts)]
    if setting.profile.lockstep:
        return []  # one degree throughout is the DeepSpeed-like system
    if setting.lockstep:
        return _in_lockstep(setting)
    trainers: list[ComparedSystem | Skipped] = []
    gpus, longest = setting.workload.gpus, setting.longest
    promising = promising_homogeneous(setting.batches, setting.models, gpus, longest, setting.sync)
    homogeneous = _best(setting, promising)
    name = "Best static strategy, balanced"
    if homogeneous is None:
        trainers.append(Skipped("static", name, f"no scheme holds {longest:,} tokens"))
    else:
        trainers.append(
            ComparedSystem(
                "static",
                name,
                f"{homogeneous}, the best homogeneous strategy on these batches; our dispatch and "
                "packing",
                True,
                lambda batch: setting.run_balanced(batch, [homogeneous]),
                homogeneous,
            )
        )
    reach = {scheme: model.max_sequence for scheme, model in setting.models.items()}
    mixed = [
        s
        for s in candidates
        if not s.homogeneous and max(reach[scheme] for scheme, _ in s.counts) >= longest
    ]
    heterogeneous = _best(setting, mixed)
    name = "One heterogeneous strategy"
    if heterogeneous is None:
        why = "no candidate of the proposal is heterogeneous and holds the longest sequence"
        trainers.append(Skipped("one-strategy", name, why))
    else:
        trainers.append(
            ComparedSystem(
                "one-strategy",
                name,
                f"{heterogeneous} for every step, the proposal's best; our dispatch and packing",
                True,
                lambda batch: setting.run_balanced(batch, [heterogeneous]),
            )
        )
    return trainers


def static_without_stages(setting: Setting) -> Strategy | None:
    """Find the best static strategy without pipeline stages, for the rules of trainers."""
    if setting.static_experts is not None:
        return _find_flat_experts(setting, setting.static_experts)
    if setting.profile.lockstep:
        return best_in_lockstep(setting)
    models = {s: m for s, m in setting.models.items() if s.pp == 1}
    gpus, sync = setting.workload.gpus, setting.sync
    best = best_homogeneous(setting.batches, models, gpus, sync, setting.longest)
    return None if best is None else best[0]


def best_in_lockstep(setting: Setting) -> Strategy | None:
    """Find the scheme with the least mean time in even micro-steps, with its sync."""
    best = best_static_micro_steps(
        setting.batches,
        setting.models,
        setting.workload.gpus,
        setting.longest,
        setting.sync,
        setting.micro_step_multiple,
    )
    return None if best is None else best[0]


def _with_experts(setting: Setting, best: PlanningProblem) -> ComparedSystem:
    """Set up the best static run of experts on several ranks."""
    planner = StepPlanner(best, QUICK)
    return ComparedSystem(
        "static",
        "Best static strategy, balanced",
        f"{_strategy_of(best)}, experts on {setting.expert_parallel} ranks: the fastest degree, "
        "mode and scheme throughout on these batches; our dispatch and packing",
        True,
        lambda batch: Execution.from_plan(planner.plan(batch)),
        _strategy_of(best),
    )


def _find_flat_experts(setting: Setting, best: PlanningProblem) -> Strategy | None:
    """Find the best static run without pipeline stages, experts on several ranks."""
    if all(scheme.pp == 1 for scheme in best.models):
        return _strategy_of(best)
    flat = {entry.scheme for entry in setting.profile.schemes if entry.scheme.pp == 1}
    flat_best = find_static_expert_run(
        setting.profile.keep_schemes(flat),
        setting.workload,
        setting.batches[:SAMPLED],
        setting.longest,
        setting.sync,
        lockstep=setting.lockstep,
    )
    return None if flat_best is None else _strategy_of(flat_best)


def _strategy_of(problem: PlanningProblem) -> Strategy:
    """Return the strategy of a problem with one scheme."""
    (scheme,) = problem.models
    return Strategy.from_counts({scheme: problem.workload.gpus // scheme.gpus})


def _in_lockstep(setting: Setting) -> list[ComparedSystem | Skipped]:
    name = "Best static strategy, balanced"
    why = "pipelines side by side that differ do not run in lockstep"
    several = Skipped("one-strategy", "One heterogeneous strategy", why)
    best = best_in_lockstep(setting)
    if best is None:
        return [Skipped("static", name, f"no scheme holds {setting.longest:,} tokens"), several]
    return [
        ComparedSystem(
            "static",
            name,
            f"{best}, the best homogeneous strategy on these batches in lockstep; our dispatch to "
            "micro-steps and replicas",
            True,
            lambda batch: setting.even_micro_steps(batch, best),
            best,
        ),
        several,
    ]


def _best(setting: Setting, strategies: Sequence[Strategy]) -> Strategy | None:
    """Find the strategy of least mean iteration with our dispatch and packing."""
    rough = estimate_means_ms(strategies, setting.batches, setting.models, setting.sync)
    if not rough:
        return None
    limit = min(rough.values()) * TIMED_WITHIN
    fraction = setting.profile.forward_fraction
    judged = {
        strategy: mean(
            compute_ms(setting.run_balanced(batch, [strategy]).phases, fraction)
            for batch in setting.batches
        )
        + setting.sync.of_strategy_ms(strategy)
        for strategy, time in rough.items()
        if time <= limit
    }
    return min(judged, key=lambda strategy: judged[strategy])
