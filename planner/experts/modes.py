"""Recomputation modes of the groups of a micro-step that share exchanges of experts' tokens."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.recomputation import repeats_exchanges


def choose_modes(held: Sequence[tuple[SchemeModel, Sequence[int]]]) -> list[str | None]:
    """Choose the recomputation mode of each group of a micro-step: the cheapest that holds it.

    ``held``: schemes and lengths. If one repeats the exchanges of experts' tokens, all do, as the
    ranks of a component take part in every exchange.
    """
    classes = [PipelineClass.from_model(model, 1) for model, _ in held]
    chosen = [k.choose_mode(lengths).name for k, (_, lengths) in zip(classes, held, strict=True)]
    if not any(map(repeats_exchanges, chosen)):
        return chosen
    modes: list[str | None] = []
    for k, (_, lengths), name in zip(classes, held, chosen, strict=True):
        repeating = [mode for mode in k.all_modes if repeats_exchanges(mode.name)]
        padded = sum(k.pad(length) for length in lengths)
        holding = [mode for mode in repeating if padded <= mode.capacity]
        best = min(holding, key=lambda mode: mode.micro_batch_ms(lengths), default=None)
        modes.append(name if repeats_exchanges(name) or best is None else best.name)
    return modes
