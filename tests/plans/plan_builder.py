"""Small plans written by hand: micro-batches, pipelines and steps with derived fields filled in."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seqplan.plans.format.codec import to_json
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme


def write_file(path: Path, plans: Iterable[Plan]) -> Path:
    """Write plans, whatever they are, to a file; its path."""
    path.write_text("".join(f"{to_json(plan)}\n" for plan in plans), "utf-8")
    return path


def micro_step_ms(value: float) -> float:
    """Times of a plan have 3 decimals."""
    return round(value, 3)


def batch(costs: Mapping[Scheme, Any], scheme: Scheme, lengths: dict[int, int]) -> MicroBatch:
    """A micro-batch of sequences given as position → length (tokens), in packed order."""
    cost = costs[scheme]
    time = sum(cost.a * length**2 + cost.b * length for length in lengths.values()) + cost.c
    padded = scheme.pad_micro_batch(lengths.values())
    return MicroBatch(tuple(lengths), sum(lengths.values()), padded, micro_step_ms(time))


def pipeline(
    scheme: Scheme, ranks: tuple[int, ...], *batches: MicroBatch, micro_step: int | None = None
) -> PlannedPipeline:
    """A pipeline predicted by form S, Σ cost + (pp − 1) · max cost."""
    times = [micro.cost_ms for micro in batches]
    predicted = micro_step_ms(sum(times) + (scheme.pp - 1) * max(times, default=0.0))
    return PlannedPipeline(scheme, ranks, batches, predicted, micro_step)


def plan_of(
    pipelines: tuple[PlannedPipeline, ...],
    lengths: tuple[int, ...],
    predicted: float,
    gap: float = 1.0,
    **more: Any,
) -> Plan:
    """A sound plan around these pipelines, whose bound follows from ``gap``; ``more`` overrides."""
    used = {rank for replica in pipelines for rank in replica.ranks}
    world_size = more.get("world_size", max(used) + 1)
    fields: dict[str, Any] = {
        "step": 0,
        "provenance": Provenance("1", 0, "sha256:p", None),
        "world_size": world_size,
        "ids": tuple(range(len(lengths))),
        "lengths": lengths,
        "tokens": sum(lengths),
        "loss_tokens": sum(lengths) - len(lengths),
        "pipelines": pipelines,
        "idle_ranks": tuple(sorted(set(range(world_size)) - used)),
        "groups": process_groups(pipelines),
        "predicted_ms": predicted,
        "lower_bound_ms": predicted / (1 + gap),
        "gap": gap,
        "selection": (),
    }
    return Plan(**fields | more)
