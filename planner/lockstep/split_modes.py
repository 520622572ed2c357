"""Micro-steps of few groups split into several whose recomputation modes are cheaper.

Micro-steps are formed for one mode, and each micro-batch takes its cheapest mode afterwards. So
what runs with a long sequence takes its mode, though a micro-step more could run it in another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from seqplan.planner.batches.batch import Batch
from seqplan.planner.lockstep.filling.busy_ranks import Group
from seqplan.planner.lockstep.micro_steps import MicroStep, MicroSteps
from seqplan.planner.placement.greedy import pack_modes

FEW_GROUPS, FEW_SEQUENCES = 4, 500
"""Groups of a micro-step, and sequences of a batch, up to which micro-steps are split."""


def split_modes(micro_steps: MicroSteps, batch: Batch, multiple: int = 1) -> MicroSteps:
    """Split micro-steps of few groups into several of cheaper modes, if that is faster.

    Those of one group are split together. Their number stays a multiple of ``multiple``.
    """
    if len(batch.lengths) > FEW_SEQUENCES or not any(k.modes for k in micro_steps.classes):
        return micro_steps
    together: dict[int, list[MicroStep]] = {}
    best = micro_steps
    for micro_step in micro_steps.micro_steps:
        if len(micro_step.groups) == 1:
            together.setdefault(micro_step.groups[0][0], []).append(micro_step)
        elif len(micro_step.groups) <= FEW_GROUPS:
            best = _split(best, [micro_step], micro_step.groups, batch)
    for k, of_group in together.items():
        positions = tuple(i for micro_step in of_group for i in micro_step.groups[0][1])
        best = _split(best, of_group, [(k, positions)], batch)
    if best is micro_steps or len(best.micro_steps) % multiple:
        return micro_steps
    return best.with_bound(micro_steps.lower_bound_ms)


def _split(
    best: MicroSteps, replaced: Sequence[MicroStep], groups: Sequence[Group], batch: Batch
) -> MicroSteps:
    """Return the micro-steps with some replaced by others of these groups, if they end earlier."""
    of_groups = []
    for k, positions in groups:
        of_class = best.classes[k]
        weighed = []
        for packed in pack_modes(of_class, [batch.lengths[i] for i in positions]):
            lengths = [batch.lengths[positions[j]] for j in packed]
            time_ms = of_class.choose_mode(lengths).micro_batch_ms(lengths)
            weighed.append((time_ms, k, tuple(positions[j] for j in packed)))
        of_groups.append(sorted(weighed, key=lambda entry: -entry[0]))
    split = []
    for row in zip_longest(*of_groups):
        held = [entry for entry in row if entry is not None]
        slowest_ms = max(time_ms for time_ms, _, _ in held)
        split.append(MicroStep(tuple((k, positions) for _, k, positions in held), slowest_ms))
    others = [micro_step for micro_step in best.micro_steps if micro_step not in replaced]
    changed = replace(best, micro_steps=(*others, *split))
    return changed if changed.objective_ms < best.objective_ms else best
