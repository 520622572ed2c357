"""The sync of a step: messages and bytes of the fullest rank, and the time to lay it out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.settings import Data, markdown
from seqplan.costs.model_sizes import MODELS
from seqplan.plans.scheme import Strategy
from seqplan.plans.views.placement import PlacedPipeline, Placement
from seqplan.plans.views.resharding import shards_of, unit_moves
from seqplan.plans.views.sync_count import count_moved
from seqplan.plans.views.unit_layout import UnitLayout
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.pipeline.llama_units import NORMS, llama_units

MODEL = "llama-32b"
GIB = 2**30
PARAMETER_BYTES, GRADIENT_BYTES = 2, 4
"""Of a bf16 model whose gradients are summed in fp32."""

STRATEGIES = {
    64: ("4×tp16", "2×tp16 + 4×tp8", "1×tp16 + 4×tp8 + 4×tp4", "2×tp8.pp4"),
    1024: ("64×tp16", "8×tp16 + 64×tp8 + 96×tp4", "32×tp8.pp4"),
}


def run(data: Sequence[Data]) -> None:
    """Print a table over strategies of 64 and 1,024 ranks, for ``MODEL``."""
    config = ModelConfig(**MODELS[MODEL], recompute="none", tied=False)
    units = [(name, layouts) for name, layouts in llama_units(config) if name != NORMS]
    rows = []
    for ranks, strategies in STRATEGIES.items():
        layouts = [UnitLayout(name, parts, config.layers, ranks) for name, parts in units]
        for text in strategies:
            placement = placed(Strategy.parse(text))
            assert sum(len(pipeline.ranks) for pipeline in placement) == ranks
            rows.append((f"{ranks:,}", text, *figures(layouts, placement)))
    print(f"### Sync of parameters and gradients, {MODEL}\n")
    heads = ["GPUs", "strategy", "laid out in", "all-gather: messages in", "out"]
    heads += ["GiB in", "out", "reduce-scatter: GiB out", "in"]
    print(markdown(heads, rows))


def placed(strategy: Strategy) -> Placement:
    """Place pipelines on consecutive ranks, in the strategy's order."""
    pipelines = []
    first = 0
    for scheme, count in strategy.counts:
        for _ in range(count):
            pipelines.append(PlacedPipeline(scheme, tuple(range(first, first + scheme.gpus))))
            first += scheme.gpus
    return tuple(pipelines)


def figures(units: Sequence[UnitLayout], placement: Placement) -> tuple[str, ...]:
    """CPU-seconds to lay out the slowest of a few ranks, and their largest counts."""
    shards = shards_of(placement)
    # The first rank of each scheme, and owners of the ends and the middle of every unit.
    ranks = {pipeline.ranks[0] for pipeline in placement[:: max(1, len(placement) // 16)]}
    ranks |= {len(shards) - 1, len(shards) // 2}
    slowest = 0.0
    most = [0.0] * 6
    for rank in sorted(ranks):
        began = time.process_time()
        moves = unit_moves(units, shards, rank)
        slowest = max(slowest, time.process_time() - began)
        gathered = [count_moved(move.gather_from, rank) for move in moves]
        served = [count_moved(move.gather_to, rank) for move in moves]
        reduced = [count_moved(move.reduce_to, rank) for move in moves]
        summed = [count_moved(move.reduce_from, rank) for move in moves]
        counts = (
            sum(count.messages for count in gathered),
            sum(count.messages for count in served),
            sum(count.elements for count in gathered) * PARAMETER_BYTES / GIB,
            sum(count.elements for count in served) * PARAMETER_BYTES / GIB,
            sum(count.elements for count in reduced) * GRADIENT_BYTES / GIB,
            sum(count.elements for count in summed) * GRADIENT_BYTES / GIB,
        )
        most = [max(before, now) for before, now in zip(most, counts, strict=True)]
    return (
        f"{slowest:.2f} s",
        *(f"{count:,.0f}" for count in most[:2]),
        *(f"{gib:.1f}" for gib in most[2:]),
    )
