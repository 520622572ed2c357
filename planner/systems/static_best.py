"""The best static strategies that search finds, with our dispatch and packing.

What is left between them and dynamic plans is the worth of different pipelines (homogeneous) and of
choosing anew at every step (heterogeneous).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from seqplan.planner.rounds.plan_rounds import plan_rounds
from seqplan.planner.simulation.iteration import propagation_ms
from seqplan.planner.strategies.homogeneous import (
    homogeneous_strategies,
    promising_homogeneous,
    strategy_ms,
)
from seqplan.planner.systems.setting import LeftOut, Setting, Trainer
from seqplan.plans.scheme import Strategy

JUDGED_WITHIN = 1.15
"""Strategies whose form S is within this of the least are judged by simulation."""


def static_best(setting: Setting, candidates: Sequence[Strategy]) -> list[Trainer | LeftOut]:
    """Set up the best homogeneous strategy, and the best of ``candidates``, kept throughout."""
    if setting.profile.rounds:
        return []  # one degree throughout is the DeepSpeed-like system
    trainers: list[Trainer | LeftOut] = []
    gpus, longest = setting.cluster.gpus, setting.longest
    promising = promising_homogeneous(
        setting.batches, setting.models, gpus, longest, setting.exchange
    )
    homogeneous = _best(setting, promising)
    name = "Best static strategy, balanced"
    if homogeneous is None:
        trainers.append(LeftOut("static", name, f"no scheme holds {longest:,} tokens"))
    else:
        trainers.append(
            Trainer(
                "static",
                name,
                f"{homogeneous}, the best homogeneous strategy on these batches; our dispatch and "
                "packing",
                True,
                lambda batch: setting.balanced(batch, [homogeneous]),
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
        trainers.append(LeftOut("one-strategy", name, why))
    else:
        trainers.append(
            Trainer(
                "one-strategy",
                name,
                f"{heterogeneous} for every step, the proposal's best; our dispatch and packing",
                True,
                lambda batch: setting.balanced(batch, [heterogeneous]),
            )
        )
    return trainers


def best_degree(setting: Setting) -> Strategy | None:
    """Find, under ZeRO-3, the sequence-parallel degree with the least mean time in even rounds."""
    times: dict[Strategy, float] = {}
    for strategy in homogeneous_strategies(setting.models, setting.cluster.gpus, setting.longest):
        model = setting.models[strategy.counts[0][0]]
        planned = [plan_rounds(batch, [model], setting.cluster.gpus) for batch in setting.batches]
        known = [rounds.objective_ms for rounds in planned if rounds is not None]
        if len(known) == len(planned):
            times[strategy] = mean(known)
    return min(times, key=lambda s: times[s]) if times else None


def _best(setting: Setting, strategies: Sequence[Strategy]) -> Strategy | None:
    """Find the strategy of least mean iteration with our dispatch and packing."""
    rough: dict[Strategy, float] = {}
    for strategy in strategies:
        times = [strategy_ms(strategy, batch, setting.models) for batch in setting.batches]
        known = [time for time in times if time is not None]
        if len(known) == len(times):
            rough[strategy] = mean(known) + setting.exchange.of_strategy_ms(strategy)
    if not rough:
        return None
    limit = min(rough.values()) * JUDGED_WITHIN
    fraction = setting.profile.forward_fraction
    judged = {
        strategy: mean(
            propagation_ms(setting.balanced(batch, [strategy]).phases, fraction)
            for batch in setting.batches
        )
        + setting.exchange.of_strategy_ms(strategy)
        for strategy, time in rough.items()
        if time <= limit
    }
    return min(judged, key=lambda strategy: judged[strategy])
