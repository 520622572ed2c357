"""The sync of a step: messages and bytes of the fullest rank, and the sync that plans count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.planning import time_cpu
from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from seqplan import Strategy
from seqplan.costs.analytic.estimate import estimate
from seqplan.costs.analytic.validation.published_runs import deployment_of, list_runs, load_of
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.placement.fleet import Floats
from seqplan.planner.sync.derive import ParameterTraffic
from seqplan.planner.sync.times import layout_text
from seqplan.plans.views.placement import PlacedPipeline, Placement
from seqplan.plans.views.relays import relay_moves, saves_traffic
from seqplan.plans.views.resharding import shards_of, unit_moves
from seqplan.plans.views.sync_count import Moved, count_moved
from seqplan.plans.views.unit_layout import UnitLayout
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.pipeline.llama_units import NORMS, llama_units

MODEL = "llama-32b"
GIB = 2**30
PARAMETER_BYTES, GRADIENT_BYTES = 2, 4
"""Of a bf16 model whose gradients are summed in fp32."""

PER_NODE = 8

STRATEGIES = {
    64: ("4×tp16", "2×tp16 + 4×tp8", "1×tp16 + 4×tp8 + 4×tp4", "2×tp8.pp4"),
    1024: ("64×tp16", "8×tp16 + 64×tp8 + 96×tp4", "32×tp8.pp4"),
}


def count_messages(data: Sequence[Data]) -> Output:
    """Count messages and bytes over strategies of 64 and 1,024 ranks, for ``MODEL``."""
    config = ModelConfig(**MODELS[MODEL], recompute="none", tied=False)
    units = [(name, layouts) for name, layouts in llama_units(config) if name != NORMS]
    table = Table(
        "GPUs | strategy | laid out in | all-gather: GiB by rail | messages in | out | GiB in | out"
        " | reduce-scatter: GiB out | in | GiB by rail",
        "{:,} | {} | {:.2f} s | {:.1f} | {:,.0f} | {:,.0f} | {:.1f} | {:.1f} | {:.1f} | {:.1f}"
        " | {:.1f}",
        title=f"Sync of parameters and gradients, {MODEL}",
    )
    for ranks, strategies in STRATEGIES.items():
        layouts = [UnitLayout(name, parts, config.layers, ranks) for name, parts in units]
        for text in strategies:
            placement = place(Strategy.parse(text))
            assert sum(len(pipeline.ranks) for pipeline in placement) == ranks
            table.add(ranks, text, *count_largest(layouts, placement))
    yield table
    table = Table(
        "model, GPUs | layout | messages | relays | collectives | relays over messages",
        "{}, {:,} | {} | {:.2f} s | {:.2f} s | {:.2f} s | {:.2f}",
        title="The sync of layouts on H100s, derived",
    )
    for model in ("llama3-8b", "qwen3-32b"):
        profile = load_shipped(f"{model}-h100-80gb")
        for gpus in STRATEGIES:
            traffic = ParameterTraffic.of_profile(profile, gpus)
            for layout in ((1, 1), (2, 1), (4, 1)):
                times = (
                    traffic.messages_ms(layout),
                    traffic.together_ms(layout),
                    traffic.alone_ms(layout, collectives=True),
                )
                seconds = [ms / 1e3 for ms in times]
                table.add(model, gpus, layout_text(layout), *seconds, times[1] / times[0])
    yield table
    yield Table(
        "sync | hidden | runs | median error | p90 | bias",
        "{} | {:.0%} | {} | {:.1%} | {:.1%} | {:+.1%}",
        (
            (
                kind,
                overlap,
                len(errors),
                *np.quantile(np.abs(errors), (0.5, 0.9)),
                np.median(errors),
            )
            for kind, collectives in (("collectives", True), ("this runtime's", False))
            for overlap in (0.0, 0.5)
            for errors in [predict_runs(collectives=collectives, overlap=overlap)]
        ),
        title="Published iterations of Megatron, with the sync that plans count",
    )


def predict_runs(*, collectives: bool, overlap: float = 0.0) -> Floats:
    """Predict published iterations with the sync and optimizer of plans: relative errors."""
    errors = []
    for run in list_runs():
        if run["stack"] != "megatron" or run["zero"] == 3:
            continue
        deployment, (scheme, load) = deployment_of(run), load_of(run)
        terms = estimate(deployment, scheme, load).terms_ms
        ms = sum(terms.values()) - terms.get("parameter sync", 0.0) - terms["optimizer"]
        traffic = ParameterTraffic(
            shape=deployment.sizes.shape,
            gpus=deployment.cluster.gpus,
            gpus_per_node=deployment.cluster.gpus_per_node,
            links=deployment.cluster.hardware,
        )
        sync_ms = traffic.alone_ms((scheme.tp, scheme.pp), collectives=collectives)
        ms += sync_ms * (1 - overlap) + traffic.optimizer_ms()
        rate = run["tokens"] * run["sequences"] / run["GPUs"] / (ms / 1e3)
        errors.append(run["tokens/s per GPU"] / rate - 1)
    return np.array(errors)


def place(strategy: Strategy) -> Placement:
    """Place pipelines on consecutive ranks, in the strategy's order."""
    pipelines = []
    first = 0
    for scheme, count in strategy.counts:
        for _ in range(count):
            pipelines.append(PlacedPipeline(scheme, tuple(range(first, first + scheme.gpus))))
            first += scheme.gpus
    return tuple(pipelines)


def count_largest(units: Sequence[UnitLayout], placement: Placement) -> Cells:
    """Return CPU-seconds to lay out the slowest of a few ranks, and their largest counts."""
    shards = shards_of(placement)
    relayed = saves_traffic(shards, PER_NODE)
    others = units[0].ranks // PER_NODE - 1
    rail = sum(unit.room(0) for unit in units) * others if relayed else 0
    # The first rank of each scheme, and owners of the ends and the middle of every unit.
    ranks = {pipeline.ranks[0] for pipeline in placement[:: max(1, len(placement) // 16)]}
    ranks |= {len(shards) - 1, len(shards) // 2}
    counts, times = [], []
    for rank in sorted(ranks):
        moves, ms = (
            time_cpu(relay_moves, units, shards, rank, PER_NODE)
            if relayed
            else time_cpu(unit_moves, units, shards, rank)
        )
        times.append(ms)
        gathered, served, reduced, summed = (
            [count_moved(getattr(move, field), rank) for move in moves]
            for field in ("gather_from", "gather_to", "reduce_to", "reduce_from")
        )
        counts.append(
            [sum(count.messages for count in part) for part in (gathered, served)]
            + [_sum_gib(part, PARAMETER_BYTES) for part in (gathered, served)]
            + [_sum_gib(part, GRADIENT_BYTES) for part in (reduced, summed)]
        )
    most = map(max, zip(*counts, strict=True))
    by_rail = [rail * size / GIB for size in (PARAMETER_BYTES, GRADIENT_BYTES)]
    return max(times) / 1e3, by_rail[0], *most, by_rail[1]


def _sum_gib(counts: Sequence[Moved], element_bytes: int) -> float:
    return sum(count.elements for count in counts) * element_bytes / GIB
