"""Micro-steps in which a rank has no tokens, and the recomputation that a component has in common.

Recomputation of a layer's feed-forward repeats its exchanges. If a rank of a component repeats them
in a micro-step, all do: those whose mode would not, and those without tokens, compute the
feed-forward again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from torch import Tensor

from seqplan.plans.experts import find_components, holds_whole_blocks
from seqplan.plans.recomputation import REPEATING, join_mode, repeats_exchanges, split_mode
from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.errors import PlanError

Item = TypeVar("Item")


def fill_micro_steps(
    view: RankView, items: Sequence[Item], make_empty: Callable[[], Item]
) -> list[Item]:
    """Put the rank's micro-batches in their micro-steps, empty ones between and after them."""
    if view.experts is None:
        return list(items)
    filled = [make_empty() for _ in range(view.experts.total - len(items))]
    for micro_step, item in zip(view.experts.micro_steps, items, strict=True):
        filled.insert(micro_step, item)
    return filled


def check_stages(view: RankView) -> None:
    """Reject stages that hold a part of a block. ``PlanError``."""
    for index, placed in enumerate(view.placement):
        degree = view.expert_parallel
        if placed.scheme.pp > 1 and not holds_whole_blocks(placed.scheme, placed.ranks, degree):
            raise PlanError(
                f"step {view.step}, pipeline {index}: expert_parallel {degree} does not divide the "
                f"{placed.scheme.stage_gpus} ranks of a stage into whole blocks. Plan with a "
                "divisor, or with pp 1"
            )


def check_repeated_modes(view: RankView, applied: Collection[str], model: str) -> None:
    """Reject modes if ``model`` cannot repeat the exchanges of other ranks. ``PlanError``.

    ``applied``: names of modes that it applies.
    """
    modes = [batch.recompute for p in view.pipelines for batch in p.micro_batches]
    if view.experts is None or not any(modes) or not _find_component(view)[1]:
        return
    for mode in REPEATING.values():
        if mode not in applied:
            raise PlanError(
                f"step {view.step}: {model} cannot apply recomputation mode: {mode}, which other "
                "ranks of its blocks may need. Plan without modes, or with whole blocks"
            )


def align_modes(
    view: RankView,
    local: Sequence[str | None],
    sum_over_ranks: Callable[[Sequence[float]], Tensor],
) -> list[str | None]:
    """Return the recomputation mode of each of the rank's micro-steps, in order.

    ``local``: of its micro-batches. Collective if some component has micro-steps in common:
    ``sum_over_ranks`` sums numbers over all ranks of the job.
    """
    if view.experts is None:
        return list(local)
    place, components = _find_component(view)
    if not components:
        return list(local)
    world = view.experts.world
    flags = [0.0] * (2 * components * world)
    if place is not None:
        for micro_step, mode in zip(view.experts.micro_steps, local, strict=True):
            if mode is not None:
                at = 2 * (place * world + micro_step)
                flags[at], flags[at + 1] = 1.0, float(repeats_exchanges(mode))
    sums = sum_over_ranks(flags).tolist()
    if place is None:
        return list(local)
    modes: list[str | None] = []
    of_step = dict(zip(view.experts.micro_steps, local, strict=True))
    for micro_step in range(view.experts.total):
        at = 2 * (place * world + micro_step)
        stated, repeats = sums[at] > 0, sums[at + 1] > 0
        mode = of_step.get(micro_step, "none" if stated else None)
        if mode is not None and repeats:
            name, share = split_mode(mode)
            mode = join_mode(REPEATING.get(name, name), share)
        modes.append(mode)
    return modes


def _find_component(view: RankView) -> tuple[int | None, int]:
    """Find the rank's coupled component, None if it has none, and their number."""
    if view.micro_steps is not None:
        return 0, 1
    components = find_components(
        [placed.scheme for placed in view.placement],
        [placed.ranks for placed in view.placement],
        view.expert_parallel,
    )
    coupled = [component for component in components if component.coupled]
    block = view.rank // view.expert_parallel
    mine = [at for at, component in enumerate(coupled) if block in component.blocks]
    return (mine[0] if mine else None), len(coupled)
