"""The micro-steps of one component, for any part of a step's sequences.

A component is a number of consecutive ranks, whole blocks of expert parallelism. Its ranks run
equally many micro-steps, whose groups are formed anew.

Work of experts is spread over the ranks of a block, so each of them takes the mean time of all. If
a component is one block, that time does not depend on how sequences are grouped (in one
recomputation mode), and groups are chosen by the other costs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.expert_sharing import reduce_equal_sharing
from seqplan.planner.bounds.gpu_time import gpu_ms
from seqplan.planner.experts.modes import choose_modes
from seqplan.planner.lockstep.micro_steps import MicroSteps
from seqplan.planner.lockstep.plan_micro_steps import Choice, list_choices, plan_best_choice
from seqplan.planner.placement.fleet import PipelineClass
from seqplan.plans.experts import time_blocks


@dataclass(frozen=True)
class ComponentSteps:
    """Micro-steps of the component whose first rank is ``first``, and how long they take (ms).

    ``positions``: those of its sequences in the step's batch; ``batch`` has them in this order.
    """

    first: int
    positions: tuple[int, ...]
    batch: Batch
    micro_steps: MicroSteps
    time_ms: float


class ComponentPlanner:
    """Plans components of given sizes from parts of a batch, each part of a component once.

    ``models``: schemes of one layout without stages. ``sizes``: ranks of each component; their
    numbers of micro-steps are multiples of ``multiple``. ``shared``: the part of shared costs that
    groups are chosen with; by default none of them if a component is one block, else all.
    ``weights``: GPU-time of each sequence on the scheme that takes the least (ms).
    """

    def __init__(
        self,
        batch: Batch,
        models: Sequence[SchemeModel],
        sizes: Sequence[int],
        expert_parallel: int,
        *,
        multiple: int = 1,
        shared: float | None = None,
    ) -> None:
        self.sizes = np.array(sizes)
        self._batch, self._degree, self._multiple = batch, expert_parallel, multiple
        fitting = [model for model in models if model.scheme.gpus <= max(sizes)]
        self._full = {model.scheme: model for model in fitting}
        self._models = {
            size: [
                reduce_equal_sharing(model, (size != expert_parallel) if shared is None else shared)
                for model in fitting
                if model.scheme.gpus <= size
            ]
            for size in set(sizes)
        }
        classes = [PipelineClass.from_model(model, 1) for model in fitting]
        self.weights = gpu_ms(classes, np.array(batch.lengths, dtype=np.int64)).min(axis=0)
        self._choices: dict[int, list[Choice]] = {}
        self._choices_of_size: dict[int, list[Choice]] = {}
        self._known: dict[tuple[int, tuple[int, ...]], tuple[MicroSteps, float] | None] = {}

    def plan_parts(self, parts: Sequence[tuple[int, ...]]) -> list[ComponentSteps] | None:
        """Plan the first components, one of each part of the batch; None if one does not fit."""
        components = []
        for number, part in enumerate(parts):
            component = self.plan_part(number, part)
            if component is None:
                return None
            components.append(component)
        return components

    def plan_part(self, number: int, part: tuple[int, ...]) -> ComponentSteps | None:
        """Plan a component from some positions of the batch; None if they do not fit."""
        held = Batch(
            self._batch.step,
            tuple(self._batch.ids[i] for i in part),
            tuple(self._batch.lengths[i] for i in part),
        )
        key = int(self.sizes[number]), part
        if key not in self._known:
            self._known[key] = self._plan_component(number, held)
        known = self._known[key]
        if known is None:
            return None
        return ComponentSteps(int(self.sizes[:number].sum()), part, held, *known)

    def _plan_component(self, number: int, held: Batch) -> tuple[MicroSteps, float] | None:
        """Plan and time the micro-steps of a component.

        The first part that is planned of a size narrows the searches for other components of this
        size, and the first of a component leaves one search for its later parts.
        """
        size = int(self.sizes[number])
        models = self._models[size]
        every = list_choices(models)
        choices = self._choices.get(number) or self._choices_of_size.get(size, every)
        best = plan_best_choice(held, models, choices, size, self._multiple)
        if best is None and number not in self._choices and choices is not every:
            best = plan_best_choice(held, models, every, size, self._multiple)
        if best is None:
            return None
        self._choices[number] = best.near[:1]
        self._choices_of_size.setdefault(size, best.near)
        return best.micro_steps, self._time_ms(best.micro_steps, held)

    def _time_ms(self, micro_steps: MicroSteps, batch: Batch) -> float:
        """Time a component: Σ over micro-steps of the slowest block (ms)."""
        total = 0.0
        for micro_step in micro_steps.micro_steps:
            running, first = [], 0
            held = [
                (self._full[micro_steps.schemes[k]], [batch.lengths[i] for i in positions])
                for k, positions in micro_step.groups
            ]
            for (model_of_all, lengths), mode in zip(held, choose_modes(held), strict=True):
                scheme = model_of_all.scheme
                model = model_of_all.find_mode(mode) or model_of_all
                shared = model.b_shared * sum(lengths)
                cost = model.latency.micro_batch_ms(lengths)
                ranks = tuple(range(first, first + scheme.gpus))
                running.append((ranks, cost - shared, shared))
                first += scheme.gpus
            total += max(time_blocks(running, self._degree))
        return total
