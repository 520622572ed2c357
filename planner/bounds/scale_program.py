"""The linear program of a step, for the least scale of its pipelines; states and rows it needs."""

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
    ``limiting`` (states, resources): of which resources there is a row.
    """

    part_state: Ints
    part_group: Ints
    limiting: npt.NDArray[np.bool_]

    @property
    def states(self) -> int:
        return len(self.limiting)

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
        return int(self.limiting.sum())

    def resource_limits(self, share: Floats, weights: Floats) -> list[Block]:
        """Demand Σ part·weight·share − pipelines ≤ 0, for each limiting resource of each state."""
        resources = share[self.part_state, :, self.part_group] * weights[self.part_group, None]
        rows = np.arange(self.resource_rows)
        row_of = np.zeros(self.limiting.shape, dtype=np.int64)
        row_of[self.limiting] = rows
        part, resource = np.nonzero(self.limiting[self.part_state])
        return [
            (resources[part, resource], row_of[self.part_state[part], resource], part),
            (-np.ones(len(rows)), rows, self.parts + np.nonzero(self.limiting)[0]),
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
    limiting: npt.NDArray[np.bool_] | None = None,
) -> tuple[float, Floats, Floats] | None:
    """Solve for the least scale: it, pipelines per state, duals of resources (states, resources).

    ``share`` (states, resources, groups), ``eligible`` (states, groups), ``of_class`` (states,)
    and ``weights`` (groups,): sequences that a group stands for. Every group is placed whole.
    ``limiting`` (states, resources): resources that are demanded, by default all.
    """
    states, groups = eligible.shape
    part_state, part_group = np.nonzero(eligible)
    if limiting is None:
        limiting = np.ones(share.shape[:2], dtype=np.bool_)
    program = _Program(part_state, part_group, limiting)
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
    duals = np.zeros(share.shape[:2])
    duals[limiting] = np.maximum(-solution.duals[: program.resource_rows], 0.0)
    return solution.objective, solution.values[program.pipelines], duals


def find_needed_states(
    share: Floats, eligible: npt.NDArray[np.bool_], sizes: Floats
) -> npt.NDArray[np.bool_]:
    """Find the states (states,) that no other replaces at the same limit of GPUs.

    One that holds the same groups or more, takes no larger shares and no more GPUs (``sizes``)
    replaces it. Of equal ones the first is needed.
    """
    taken = np.where(eligible[:, None, :], share, np.inf).reshape(len(share), -1)
    replaces = np.asarray((taken[:, None] <= taken).all(axis=2)) & (sizes[:, None] <= sizes)
    first = np.tri(len(share), k=-1, dtype=np.bool_).T
    return ~np.asarray((replaces & (first | ~replaces.T)).any(axis=0))


def find_limiting_resources(
    share: Floats, eligible: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Find the resources (states, resources) that another one of the state does not imply.

    One whose shares are nowhere larger than those of another is implied; of equal ones the last
    is found.
    """
    taken = np.where(eligible[:, None, :], share, 0.0)
    # Of one resource by another.
    covers = np.asarray((taken[:, :, None] >= taken[:, None]).all(axis=3))
    last = np.tri(share.shape[1], k=-1, dtype=np.bool_)
    return ~np.asarray((covers & (last | ~covers.swapaxes(1, 2))).any(axis=1))
