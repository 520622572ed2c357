"""Groups of any size compared with powers of two: rings of 3, 5, 6, 7, 10 and 12 as well.

Derived profiles of one layout, the same batches, plans without sync. In lockstep and with groups
that stay within a step. Then Megatron's groups, if its ranks are no power of two.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan import Cost, Planner, Profile, Scheme
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.integrations.degree_costs import by_degree, ring_costs
from seqplan.integrations.megatron_groups import plan_chains
from seqplan.planner.execution import ExecutionKind
from seqplan.planner.lockstep.rank_groups import plan_groups

GPUS, TOKENS, STEPS = 64, 1_000_000, 8
MEGATRON_RANKS, HELD = (6, 12, 24, 48), 8_192
CONTEXTS = (32_768, 131_072)
POWERS, ANY = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
EXECUTIONS: tuple[ExecutionKind, ...] = ("lockstep", "static")


def run(data: Sequence[Data]) -> None:
    """Print how many times as fast plans with all ring degrees are."""
    powers, every = _derive("powers", POWERS), _derive("any", ANY)
    rows = []
    for source in data:
        for context in CONTEXTS:
            pool = source.lengths[source.lengths <= context]
            for execution in EXECUTIONS:
                ratios, gaps = [], []
                for step in range(STEPS):
                    drawn = np.random.default_rng(step).choice(pool, TOKENS // 50)
                    lengths = drawn[: int(np.searchsorted(np.cumsum(drawn), TOKENS))]
                    plans = [
                        Planner.from_profile(
                            profile, GPUS, context, execution=execution, sync=None
                        ).plan(lengths)
                        for profile in (powers, every)
                    ]
                    ratios.append(plans[0].predicted_ms / plans[1].predicted_ms)
                    gaps.append(plans[1].gap)
                rows.append(
                    [
                        f"{source.name}, {context // 1024}K",
                        execution,
                        f"{np.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                        f"{np.median(gaps):.1%}",
                    ]
                )
    print(f"### Rings of any degree, {GPUS} GPUs, {TOKENS:,} tokens a step, {STEPS} steps\n")
    print(markdown(["lengths", "execution", "powers of two / any", "gap of any"], rows) + "\n")
    print(f"### Megatron's groups of all divisors, {HELD:,} tokens a rank, {STEPS} steps\n")
    known = ring_costs(every, "tp2")
    megatron = [
        _megatron_row(source, known, ranks, one_each=one_each)
        for source in data
        for ranks in MEGATRON_RANKS
        for one_each in (False, True)
    ]
    head = ["lengths, 32K", "ranks", "micro-batches", "powers of two / all divisors", "gap", "CPU"]
    print(markdown(head, megatron) + "\n")


def _megatron_row(source: Data, known: dict[int, Cost], ranks: int, *, one_each: bool) -> list[str]:
    divisors = [degree for degree in range(1, ranks + 1) if ranks % degree == 0]
    powers, every = by_degree(known, ranks), by_degree(known, ranks, formed=divisors)
    ratios, gaps, cpu_ms = [], [], []
    for step in range(STEPS):
        drawn = np.random.default_rng(step).choice(source.lengths, 16 * ranks)
        lengths = np.minimum(drawn, CONTEXTS[0]).tolist()
        alone = plan_groups(lengths, ranks, HELD, powers, one_each=one_each)
        began = time.process_time()
        best = plan_chains(lengths, ranks, HELD, every, one_each=one_each)
        cpu_ms.append(1e3 * (time.process_time() - began))
        ratios.append(alone.predicted_ms / best.predicted_ms)
        gaps.append(best.gap)
    return [
        source.name,
        str(ranks),
        "one by one" if one_each else "packed",
        f"{np.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        f"{np.median(gaps):.1%}",
        f"{np.median(cpu_ms):.0f} ms",
    ]


def _derive(name: str, rings: Sequence[int]) -> Profile:
    deployment = Deployment(
        cluster=ClusterHardware(DEVICES["h100-80gb"], GPUS // 8, 8),
        sizes=ModelSizes.from_mapping(MODELS["llama3-8b"]),
        zero=1,
        recompute="none",
    )
    schemes = [Scheme(tp=2, ring=ring) for ring in rings]
    return Profile.from_document(derive_profile(deployment, schemes, name=name), name)
