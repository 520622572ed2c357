"""Recomputation modes by micro-batch, compared with one mode for the whole run.

Whole iterations with sync on derived profiles: the best static scheme, and plans, each in the best
mode of all; then plans and the best static scheme whose micro-batches have modes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.each_strategy import each_strategy_bound_ms
from benchmarks.settings import Data, markdown
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.derived.model_profiles import derive_model_profile
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.with_sync import Families
from seqplan.planner.errors import Infeasible
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.proposal.uniform import find_best_scheme
from seqplan.planner.step.selection import select
from seqplan.planner.step.step_planner import StepPlanner
from seqplan.planner.strategies.homogeneous import homogeneous_strategies
from seqplan.planner.strategies.regrouping import make_regroup_layouts
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.workload import Workload

STEPS, NODES = 4, 8

HOST_BYTES = 100e9
"""Host memory for the activations of a GPU, where modes may offload."""


@dataclass(frozen=True)
class Setting:
    """A model on GPUs, tokens of a step, and contexts of each data set."""

    model: str
    device: str
    gpus: int
    tokens: int
    contexts: tuple[tuple[str, int], ...]


K = 1024
SETTINGS = (
    Setting(
        "llama3-8b",
        "h100-80gb",
        8,
        256 * K,
        (("Wikipedia", 32 * K), ("Wikipedia", 128 * K), ("code", 32 * K), ("code", 128 * K)),
    ),
    Setting(
        "qwen3-32b",
        "h100-80gb",
        64,
        1024 * K,
        (("Wikipedia", 32 * K), ("Wikipedia", 128 * K), ("code", 128 * K)),
    ),
    Setting("llama3-70b", "h100-80gb", 64, 1024 * K, (("Wikipedia", 32 * K), ("code", 32 * K))),
    Setting(
        "llama-32b",
        "a800-80gb",
        64,
        1024 * K,
        (("Wikipedia", 32 * K), ("Wikipedia", 128 * K), ("code", 128 * K)),
    ),
    Setting("llama-32b", "a800-80gb", 64, 200_000, (("Wikipedia", 128 * K),)),
    Setting(
        "qwen3-32b",
        "h100-80gb",
        16,
        256 * K,
        (("Wikipedia", 32 * K), ("Wikipedia", 128 * K), ("code", 128 * K)),
    ),
    Setting("llama3-70b", "h100-80gb", 32, 512 * K, (("Wikipedia", 32 * K),)),
)


@dataclass(frozen=True)
class Planned:
    """Iterations of plans (ms), CPU of a proposal (s) and of a step (ms)."""

    times_ms: tuple[float, ...]
    proposal_s: float
    step_ms: float

    @property
    def mean_ms(self) -> float:
        """Return the mean iteration (ms)."""
        return float(np.mean(self.times_ms))


def run(data: Sequence[Data]) -> None:
    """Print each setting's iterations, in seconds, and their ratios."""
    lengths = {source.name.partition(" ")[0]: source.lengths for source in data}
    rows = []
    for setting in SETTINGS:
        for name, context in setting.contexts:
            if name in lengths:
                rows.append(_row(setting, name, lengths[name], context))
                print(" | ".join(rows[-1]), flush=True)
    print(
        f"\n### Recomputation modes by micro-batch ({STEPS} steps, derived profiles, predicted)\n"
    )
    head = [
        "model, GPUs, tokens",
        "data",
        "static",
        "plans of one mode",
        "with modes",
        "static / modes",
        "one / modes",
        "static / static with modes",
        "static / bound of one scheme with modes",
        "modes / modes with offload",
        "over the bound of all plans: one → modes",
        "static / bound, one / bound: no plan gains more",
        "CPU of a proposal, one → modes",
        "CPU of a step, one → modes",
    ]
    print(markdown(head, rows) + "\n")


def _row(
    setting: Setting, name: str, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], context: int
) -> list[str]:
    hardware = ClusterHardware(DEVICES[setting.device], NODES, 8)
    with_host = replace(hardware, hardware=replace(hardware.hardware, host_memory_bytes=HOST_BYTES))
    sizes = ModelSizes.from_mapping(MODELS[setting.model])
    profile = derive_model_profile(sizes, hardware, name=f"{setting.model}-{setting.device}")
    workload = Workload(setting.gpus, context, setting.tokens)
    sampler = Sampler(lengths, setting.tokens, context, 0)
    batches = list(sampler.batches(STEPS))
    longest = int(sampler.lengths.max())
    static: dict[str, float] = {}
    planned: dict[str, Planned] = {}
    for mode in profile.modes:
        of_mode = profile.keep_modes({mode.name})
        try:
            planned[mode.name] = _plan(of_mode, workload, lengths, batches)
        except Infeasible:
            continue
        fastest = _static_ms(of_mode, workload, batches, longest)
        if fastest is not None:
            static[mode.name] = fastest
    modes = _plan(profile, workload, lengths, batches)
    offloading = _plan(
        derive_model_profile(sizes, with_host, name=profile.name),
        workload,
        lengths,
        batches,
    )
    uniform_ms = _static_ms(profile, workload, batches, longest)
    assert uniform_ms is not None
    best_static = min(static, key=lambda mode: static[mode])
    best_plans = min(planned, key=lambda mode: planned[mode].mean_ms)
    one = planned[best_plans]
    of_best = profile.keep_modes({best_plans})
    bound_ms = _bound_ms(profile, workload, batches, modes.times_ms)
    one_bound_ms = _bound_ms(of_best, workload, batches, one.times_ms)
    return [
        f"{setting.model}, {setting.gpus} × {setting.device}, {setting.tokens:,}",
        f"{name} {context // K}K",
        f"{static[best_static] / 1e3:.2f} {best_static}",
        f"{one.mean_ms / 1e3:.2f} {best_plans}",
        f"{modes.mean_ms / 1e3:.2f}",
        f"{static[best_static] / modes.mean_ms:.3f}",
        f"{one.mean_ms / modes.mean_ms:.3f}",
        f"{static[best_static] / uniform_ms:.3f}",
        f"{static[best_static] / _bound_static_ms(profile, workload, batches, longest):.3f}",
        f"{modes.mean_ms / offloading.mean_ms:.3f}",
        f"{one.mean_ms / one_bound_ms - 1:.1%} → {modes.mean_ms / bound_ms - 1:.1%}",
        f"{static[best_static] / bound_ms:.3f}, {one.mean_ms / bound_ms:.3f}",
        f"{one.proposal_s:.1f} → {modes.proposal_s:.1f} s",
        f"{one.step_ms:.0f} → {modes.step_ms:.0f} ms",
    ]


def _static_ms(
    profile: Profile, workload: Workload, batches: Sequence[Batch], longest: int
) -> float | None:
    """Time the best static scheme with our dispatch and packing, sync included (ms)."""
    sync = choose_sync(profile, workload.gpus)
    fastest = find_best_scheme(profile, workload, batches, longest, sync, lockstep=False)
    return None if fastest is None else fastest[1]


def _bound_static_ms(
    profile: Profile, workload: Workload, batches: Sequence[Batch], longest: int
) -> float:
    """Bound the mean iteration of the best static scheme, sync included (ms)."""
    models, sync = workload.models(profile), choose_sync(profile, workload.gpus)
    means = []
    for strategy in homogeneous_strategies(models, workload.gpus, longest):
        fleet = Fleet.from_strategy(strategy, models)
        planned = [select(b, [strategy], models, workload.gpus, tailor=False) for b in batches]
        bounds = [
            certify(fleet, batch, selected.placement.objective_ms)
            for batch, selected in zip(batches, planned, strict=True)
        ]
        means.append(float(np.mean(bounds)) + sync.of_strategy_ms(strategy))
    return min(means)


def _plan(
    profile: Profile,
    workload: Workload,
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]],
    batches: Sequence[Batch],
) -> Planned:
    start = time.process_time()
    proposal = make_proposal(profile, workload, lengths)
    proposal_s = time.process_time() - start
    planner = StepPlanner(proposal, PlanningOptions())
    start = time.process_time()
    plans = [planner.plan(batch) for batch in batches]
    step_ms = (time.process_time() - start) / len(plans) * 1e3
    times = [plan.predicted_ms + (plan.sync_ms or 0.0) for plan in plans]
    return Planned(tuple(times), proposal_s, step_ms)


def _bound_ms(
    profile: Profile, workload: Workload, batches: Sequence[Batch], times: Sequence[float]
) -> float:
    """Bound the mean iteration (ms) of strategies of whole pipelines and of groups that regroup."""
    models, sync = workload.models(profile), choose_sync(profile, workload.gpus)
    families = Families(models, workload.gpus, sync)
    regrouping = make_regroup_layouts(models, sync)
    bounds = [
        min(
            [
                each_strategy_bound_ms(families, batch, time_ms),
                *(layout.bound_ms(batch, workload.gpus) for layout in regrouping),
            ]
        )
        for batch, time_ms in zip(batches, times, strict=True)
    ]
    return float(np.mean(bounds))
