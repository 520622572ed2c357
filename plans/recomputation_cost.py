"""Recomputation of a plan in words: how much of it there is, what it costs, what it saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from seqplan.plans.lint import SchemeCost
from seqplan.plans.load import time_loads
from seqplan.plans.percent import percent
from seqplan.plans.plan import Plan
from seqplan.plans.recomputation import MODES, rank_mode
from seqplan.plans.scheme import Scheme


def describe_recomputation(plan: Plan, costs: Mapping[Scheme, SchemeCost]) -> Iterable[str]:
    """Yield how many micro-batches recompute, and with costs what it takes and what it saves."""
    batches = [
        (pipeline.scheme, batch) for pipeline in plan.pipelines for batch in pipeline.micro_batches
    ]
    modes = Counter(batch.recompute for _, batch in batches if batch.recompute is not None)
    if not modes:
        return
    parts = ", ".join(f"{modes[mode]:,} {mode}" for mode in sorted(modes, key=rank_mode))
    yield f"recomputation: {parts} of {len(batches):,} micro-batch{'es' * (len(batches) > 1)}"
    total = sum(scheme.gpus * batch.cost_ms for scheme, batch in batches)
    extra, longest = 0.0, 0
    for scheme, batch in batches:
        if batch.recompute in (None, MODES[0]):
            continue
        cost = costs[scheme].find_mode(MODES[0]) if scheme in costs else None
        if cost is None:
            return
        lengths = [plan.lengths[position] for position in batch.sequences]
        least = sum(length * (cost.a * length + cost.b) for length in lengths) + cost.c
        least += time_loads(plan.loads, scheme, batch.sequences)
        extra += scheme.gpus * max(batch.cost_ms - least, 0.0)
        longest = max(longest, batch.padded_tokens)
    if not longest or not total:
        return
    text = f"  which costs {percent(extra / total)} of the GPU-time"
    holding = [
        scheme
        for scheme, of_scheme in costs.items()
        if (whole := of_scheme.find_mode(MODES[0])) is not None and whole.max_len >= longest
    ]
    if holding:
        least_gpus = min(holding, key=lambda scheme: (scheme.gpus, scheme))
        text += f"; without it the largest, {longest:,} tokens, needs {least_gpus}"
    else:
        text += f"; without it no scheme holds the largest, {longest:,} tokens"
    yield text
