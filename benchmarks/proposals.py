"""Proposals and steps next to published planners: Hydraulis' pipeline and FlexSP's programs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean, median

import numpy as np

from benchmarks.planning import draw_batches, time_wall
from benchmarks.settings import CLUSTERS, PROFILE, Data, published_schemes, workload
from benchmarks.tables import Output, Table, spread
from seqplan import Batch, StepPlanner, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.lockstep.plan_micro_steps import plan_micro_steps
from seqplan.planner.lockstep.proof import prove_micro_steps
from seqplan.planner.proposal.eq4 import continuous_proposal, integer_strategies
from seqplan.planner.simulation.one_f_one_b import simulate_ms
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.planner.step.selection import select
from seqplan.planner.systems.hydraulis import CBC_S, TRIALS, eq4_pool, run_published_step
from seqplan.planner.systems.programs.flexsp_program import flexsp
from seqplan.planner.systems.setting import Setting

PUBLISHED_S = {64: 2.03, 1024: 107.21}
"""Hydraulis table 2: strategy proposal, CommonCrawl, 32K, one process."""


def make_proposals(data: Sequence[Data], repeats: int = 9) -> Output:
    """Time the relaxation of Eq. 4, and proposals of both methods with their gaps."""
    profile = published_schemes()
    relaxed = Table(
        "lengths | GPUs | relaxation | rounding | strategies | published (its table 2)",
        "{} | {} | {:.1f} ms | {:.0f} ms | {} | {:.2f} s",
        title=f"Eq. 4 relaxed, every L ≤ 32,768 at step 1 (median of {repeats})",
    )
    for source, gpus in product(data, CLUSTERS):
        counts = np.bincount(np.minimum(source.lengths, 32768), minlength=32769)[1:].astype(float)
        models = list(workload(gpus).models(profile).values())
        times = []
        for _ in range(repeats):
            result, ms = time_wall(continuous_proposal, models, np.arange(1, 32769), counts)
            strategies, rounding_ms = time_wall(integer_strategies, result, models, gpus)
            times.append((ms, rounding_ms))
        medians = map(median, zip(*times, strict=True))
        relaxed.add(source.name, gpus, *medians, len(strategies), PUBLISHED_S[gpus])
    yield relaxed
    table = Table(
        "lengths | GPUs | method | time | kept | expected step | above bound",
        "{} | {} | {} | {:.1f} s | {} | {:,.0f} ms | {:.1%}",
        title="Proposals (simulated on sampled batches with our dispatch and packing)",
    )
    for source, gpus, method in product(data, CLUSTERS, ("search", "eq4")):
        proposal, ms = time_wall(
            make_proposal, profile, workload(gpus), source.lengths, method=method, sync=None
        )
        above = proposal.expected_ms / proposal.lower_bound_ms - 1
        kept = len(proposal.candidates)
        table.add(source.name, gpus, method, ms / 1e3, kept, proposal.expected_ms, above)
    yield table


def compare_published(data: Sequence[Data], gpus: int = 64, steps: int = 20) -> Output:
    """Compare with the published pipeline: Eq. 4's pool, Alg. 1, Eq. 1 by CBC."""
    profile = published_schemes()
    ratio = "{:.2f} ({:.2f} to {:.2f})"
    table = Table(
        "lengths | its simulated step over ours | over ours on its pool (1F1B)"
        " | its planning, median",
        " | ".join(["{}", ratio, ratio, "{:.1f} s"]),
        title=f"Published pipeline on the same batches ({PROFILE}, {gpus} GPUs, {steps} steps)",
    )
    where = workload(gpus)
    for source in data:
        ours = StepPlanner(make_proposal(profile, where, source.lengths, sync=None))
        batches = draw_batches(source, where, steps, seed=3)
        lengths = np.minimum(source.lengths, where.max_len)
        setting = Setting(profile, where, tuple(batches), int(lengths.max()))
        pool = eq4_pool(setting, lengths)
        ratios, same, took = [], [], []
        for batch in batches:
            step, ms = time_wall(run_published_step, setting, pool, batch, fast=False, cbc_s=CBC_S)
            took.append(ms / 1e3)
            theirs = step.phases[0]
            times = [simulate_ms([m.cost_ms for m in p.micro_batches], p.scheme.pp) for p in theirs]
            ratios.append(max(times) / simulate_plan_ms(ours.plan(batch)))
            balanced = select(batch, pool, ours.problem.models, gpus, tailor=False)
            predicted_ms = max(pipeline.predicted_ms for pipeline in theirs)
            same.append(predicted_ms / balanced.placement.objective_ms)
        table.add(source.name, *spread(ratios, fmean), *spread(same, fmean), median(took))
    yield table
    yield f"{TRIALS} trials of Alg. 1, CBC {CBC_S} s per number of micro-batches; mean (range)"


def compare_flexsp(
    data: Sequence[Data],
    contexts: Sequence[int] = (32768, 196608),
    batches: int = 5,
    sequences: int = 512,
    limit_s: float = 10.0,
) -> Output:
    """Compare micro-steps in FlexSP's setting: GPT-7B on 64 A100s, 512 sequences a step."""
    profile, gpus = load_shipped("gpt-7b-a100-40gb"), 64
    table = Table(
        "lengths | context | batch | published formulation (HiGHS) | ours | bound"
        " | bound by micro-step | ratio | planning",
        "{} | {:,} | {} | {:,.0f} | {:,.0f} | {:,.0f} | {:,.0f} in {:.1f} s | {:.3f}"
        " | {:.1f} s / {:.0f} ms",
        title=f"FlexSP's setting (gpt-7b-a100-40gb, {gpus} GPUs, {sequences} sequences; ms)",
    )
    summary = []
    for source, context in product(data, contexts):
        models = profile.usable(gpus, context)
        drawn = np.random.default_rng(3).permutation(np.minimum(source.lengths, context))
        ratios, times, gaps = [], [], []
        for step in range(batches):
            lengths = drawn[step * sequences : (step + 1) * sequences].tolist()
            batch = Batch.from_lengths(lengths, step)
            quick, ms = time_wall(plan_micro_steps, batch, models, gpus)
            if quick is None:
                raise RuntimeError(f"no micro-steps for a sequence of {batch.longest} tokens")
            ours, proof_ms = time_wall(prove_micro_steps, quick, batch)
            by_scheme = {model.scheme: model for model in models}
            theirs, solver_ms = time_wall(flexsp, lengths, by_scheme, gpus, time_limit_s=limit_s)
            times.append(ms)
            gaps.append(ours.objective_ms / ours.lower_bound_ms - 1)
            ratios.append(theirs.predicted_ms / ours.objective_ms)
            table.add(
                *(source.name, context, step, theirs.predicted_ms, ours.objective_ms),
                *(quick.lower_bound_ms, ours.lower_bound_ms, proof_ms / 1e3, ratios[-1]),
                *(solver_ms / 1e3, ms),
            )
        summary.append(
            f"{source.name}, {context:,}: ratio {min(ratios):.3f} to {max(ratios):.3f}, "
            f"planning median {median(times):.0f} ms, largest {max(times):.0f} ms; "
            f"proven gap median {median(gaps):.1%}, largest {max(gaps):.1%}"
        )
    yield table
    yield "\n".join(summary)
