"""The linear program of a step, for the least scale of its pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.bounds.linear_program import Block, minimize
from seqplan.planner.placement.fleet import Floats, Ints, PipelineClass


@dataclass(frozen=True)
class _Program:
    """The linear program's columns: parts of groups, then pipelines of each state, then the scale.

    A part is an eligible pair: ``part_state`` and ``part_group`` (parts,) give its two sides.
    """

    part_state: Ints
    part_group: Ints
    states: int
    resources: int

    @property
    def parts(self) -> int:
        return len(self.part_state)

    @property
    def pipelines(self) -> slice:
        """Return the columns of pipelines, one a state."""
        return slice(self.parts, self.parts + self.states)

    @property
    def columns(self) -> int:
        return self.parts + self.states + 1

    @property
    def resource_rows(self) -> int:
        return self.states * self.resources

    def resource_limits(self, share: Floats, weights: Floats) -> list[Block]:
        """Demand Σ part·weight·share − pipelines ≤ 0, for each resource of each state."""
        taken = share[self.part_state, :, self.part_group] * weights[self.part_group, None]
        rows = self.part_state[:, None] * self.resources + np.arange(self.resources)
        each = np.arange(self.resource_rows)
        return [
            (taken.ravel(), rows.ravel(), np.repeat(np.arange(self.parts), self.resources)),
            (-np.ones(len(each)), each, self.parts + each // self.resources),
        ]

    def pipeline_limits(self, sizes: Floats, limit_of: Ints, available: Floats) -> list[Block]:
        """Demand Σ pipelines·size − available·scale ≤ 0 for each limit; ``limit_of``: a state's."""
        first = self.resource_rows
        limits = np.arange(len(available))
        return [
            (sizes, first + limit_of, self.parts + np.arange(self.states)),
            (-available, first + limits, np.full(len(limits), self.columns - 1)),
        ]


def solve_program(
    classes: Sequence[PipelineClass],
    share: Floats,
    eligible: npt.NDArray[np.bool_],
    of_class: Ints,
    weights: Floats,
    gpus: int | None,
) -> tuple[float, Floats, Floats] | None:
    """Solve for the least scale: it, pipelines per state, duals of resources (states, resources).

    ``share`` (states, resources, groups), ``eligible`` (states, groups), ``of_class`` (states,)
    and ``weights`` (groups,): sequences that a group stands for. Every group is placed whole.
    """
    states, groups = eligible.shape
    part_state, part_group = np.nonzero(eligible)
    program = _Program(part_state, part_group, states, share.shape[1])
    if gpus is None:
        counts = np.array([pipeline_class.count for pipeline_class in classes], dtype=np.float64)
        pipeline_limits = program.pipeline_limits(np.ones(states), of_class, counts)
    else:
        sizes = np.array([pipeline_class.gpus for pipeline_class in classes], dtype=np.float64)[
            of_class
        ]
        one_limit = np.zeros(states, dtype=np.int64)
        pipeline_limits = program.pipeline_limits(sizes, one_limit, np.array([float(gpus)]))
    blocks = [*program.resource_limits(share, weights), *pipeline_limits]
    rows = program.resource_rows + len(pipeline_limits[1][0])
    placed = (np.ones(program.parts), rows + part_group, np.arange(program.parts))
    objective = np.zeros(program.columns)
    objective[-1] = 1.0
    solution = minimize(objective, [*blocks, placed], np.zeros(rows), np.ones(groups))
    if solution is None:
        return None
    duals = np.maximum(-solution.duals[: program.resource_rows], 0.0).reshape(share.shape[:2])
    return solution.objective, solution.values[program.pipelines], duals
