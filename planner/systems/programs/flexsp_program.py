"""FlexSP's solver as a reference (arXiv 2412.01523, Eq. 17–24, and its public code).

A step runs in micro-steps (its micro-batches), each on all GPUs; a micro-step is cut into
sequence-parallel groups of different degrees, and lasts as long as its slowest group. Sequences are
sorted and chunked into the micro-steps by tokens; each micro-step is a mixed-integer program over
groups and buckets of similar lengths. If the program finds nothing better in its time, the best
even split into equal groups is taken, which is also the authors' starting solution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.placement.even_chunks import chunk, least_chunks
from seqplan.planner.systems.programs.buckets import buckets_of
from seqplan.plans.scheme import Scheme

Group = tuple[Scheme, tuple[int, ...]]
"""A scheme and the positions of the sequences it runs as one micro-batch."""


@dataclass(frozen=True)
class FlexSp:
    """Micro-steps of groups; ``predicted_ms``: Σ over micro-steps of the slowest group's time."""

    micro_steps: tuple[tuple[Group, ...], ...]
    predicted_ms: float


def flexsp(
    lengths: Sequence[int],
    models: Mapping[Scheme, SchemeModel],
    gpus: int,
    *,
    degrees: Sequence[int] | None = None,
    buckets: int = 16,
    tries: int = 2,
    time_limit_s: float = 10.0,
) -> FlexSp:
    """Plan one step on ``gpus`` GPUs with groups of ``degrees``, by default all but 1.

    ``degrees``: as published. ``tries`` numbers of micro-steps are solved, from the least in which
    the tokens fit on; the best is returned. ``buckets`` limits the lengths distinguished in a
    micro-step; a sequence counts as its bucket's longest. ``time_limit_s``: for the whole step,
    shared by its micro-steps. A group's time is Σ(a·l² + b·l) + c. ``ValueError`` when a degree is
    missing or a sequence fits no group.
    """
    allowed = _schemes(models, gpus, degrees)
    capacity = max(
        model.capacity * (gpus // model.scheme.gpus) for model in allowed
    )  # of all groups together
    longest = max(model.max_sequence for model in allowed)
    if max(lengths) > longest:
        raise ValueError(
            f"a sequence of {max(lengths)} tokens exceeds every group's {longest}"
            ". Use larger groups or a shorter context"
        )
    least = least_chunks(lengths, capacity)
    best = FlexSp((), inf)
    counts_tried, count = 0, least
    while counts_tried < tries and count <= len(lengths):
        limit_s = time_limit_s / (tries * count)
        solved = _micro_steps(
            lengths,
            chunk(lengths, count),
            allowed,
            gpus=gpus,
            buckets=buckets,
            limit_s=limit_s,
        )
        if solved is not None and solved.predicted_ms < best.predicted_ms:
            best = solved
        # As published, more micro-steps are tried until some number of them is feasible at all.
        counts_tried += 1 if best.micro_steps else 0
        count += 1
    return best


def _schemes(
    models: Mapping[Scheme, SchemeModel], gpus: int, degrees: Sequence[int] | None
) -> list[SchemeModel]:
    """List the usable models, smallest degree first."""
    known = {scheme.sp: model for scheme, model in models.items() if scheme.gpus == scheme.sp}
    wanted = sorted(set(known) - {1}) if degrees is None else sorted(set(degrees))
    if missing := [degree for degree in wanted if degree not in known]:
        raise ValueError(
            f"the profile has no sequence-parallel degree {missing[0]}. Use another profile"
        )
    allowed = [known[degree] for degree in wanted if degree <= gpus and known[degree].capacity > 0]
    if not allowed:
        raise ValueError(f"no sequence-parallel degree of {wanted} fits {gpus} GPUs. Use more GPUs")
    return allowed


def _micro_steps(
    lengths: Sequence[int],
    chunks: Sequence[Sequence[int]],
    allowed: Sequence[SchemeModel],
    gpus: int,
    buckets: int,
    limit_s: float,
) -> FlexSp | None:
    """Solve every micro-step; None when one of them is found infeasible."""
    micro_steps: list[tuple[Group, ...]] = []
    total = 0.0
    for positions in chunks:
        options = [_even(lengths, positions, model, gpus) for model in allowed]
        options.append(
            _mix_degrees(lengths, positions, allowed, gpus=gpus, buckets=buckets, limit_s=limit_s)
        )
        times = [_micro_step_ms(lengths, option, allowed) for option in options]
        time = min(times)
        if time == inf:
            return None
        total += time
        micro_steps.append(tuple(options[times.index(time)]))
    return FlexSp(tuple(micro_steps), total)


def _micro_step_ms(
    lengths: Sequence[int], groups: Sequence[Group], allowed: Sequence[SchemeModel]
) -> float:
    """Time the slowest group with the sequences' lengths; inf without any group."""
    latency = {model.scheme: model.latency for model in allowed}
    times = [latency[scheme].micro_batch_ms([lengths[i] for i in part]) for scheme, part in groups]
    return max(times, default=inf)


def _even(
    lengths: Sequence[int], positions: Sequence[int], model: SchemeModel, gpus: int
) -> list[Group]:
    """Fill equal groups, each sequence to the least loaded with room; [] if that fails.

    Longest sequences first.

    Longest sequences first.
    """
    count = gpus // model.scheme.gpus
    parts: list[list[int]] = [[] for _ in range(count)]
    work, room = [0.0] * count, [model.capacity] * count
    for i in sorted(positions, key=lambda i: (-lengths[i], i)):
        padded = model.scheme.pad_sequence(lengths[i])
        fitting = [p for p in range(count) if room[p] >= padded]
        if not fitting:
            return []
        p = min(fitting, key=lambda p: work[p])
        parts[p].append(i)
        work[p] += model.a * lengths[i] ** 2 + model.b * lengths[i]
        room[p] -= padded
    return [(model.scheme, tuple(part)) for part in parts if part]


def _mix_degrees(
    lengths: Sequence[int],
    positions: Sequence[int],
    allowed: Sequence[SchemeModel],
    gpus: int,
    buckets: int,
    limit_s: float,
) -> list[Group]:
    """Form groups of any degrees by mixed-integer programming; [] when none is found in time."""
    parts = buckets_of([lengths[i] for i in positions], buckets)
    group_models = [model for model in allowed for _ in range(gpus // model.scheme.gpus)]
    counts = _program(
        [max(lengths[positions[k]] for k in part) for part in parts],
        [len(part) for part in parts],
        group_models,
        gpus,
        limit_s,
    )
    if counts is None:
        return []
    left = [[positions[k] for k in part] for part in parts]
    groups = []
    for p, model in enumerate(group_models):
        members = [left[k].pop() for k in range(len(parts)) for _ in range(int(counts[k, p]))]
        if members:
            groups.append((model.scheme, tuple(members)))
    return groups


def _program(
    boundaries: Sequence[int],
    sizes: Sequence[int],
    group_models: Sequence[SchemeModel],
    gpus: int,
    limit_s: float,
) -> npt.NDArray[np.int64] | None:
    """Count the sequences of each bucket on each group (buckets, groups); None if unsolved.

    Minimizes the slowest group over integers A (bucket, group) and binaries m (group is in use):
    Σ_p A = size; Σ_k boundary·A ≤ MaxLen·m; Σ_k time·A + c·m ≤ slowest; Σ_p gpus·m ≤ all GPUs. The
    published program requires exactly all GPUs in use; at most all is never worse.
    """
    buckets, groups = len(boundaries), len(group_models)
    pairs = buckets * groups
    columns = pairs + groups + 1
    bucket, group = np.divmod(np.arange(pairs), groups)
    padded = np.array([[m.scheme.pad_sequence(n) for m in group_models] for n in boundaries])
    work = np.array([[m.a * n**2 + m.b * n for m in group_models] for n in boundaries])
    capacity = np.array([model.capacity for model in group_models], dtype=np.float64)
    overhead = np.array([model.c for model in group_models])
    size = np.array([model.scheme.gpus for model in group_models])
    all_pairs, of_group, in_use = np.arange(pairs), np.arange(groups), pairs + np.arange(groups)
    blocks = [
        (np.ones(pairs), bucket, all_pairs),
        (padded.ravel(), buckets + group, all_pairs),
        (-capacity, buckets + of_group, in_use),
        (work.ravel(), buckets + groups + group, all_pairs),
        (overhead, buckets + groups + of_group, in_use),
        (-np.ones(groups), buckets + groups + of_group, np.full(groups, columns - 1)),
        (size, np.full(groups, buckets + 2 * groups), in_use),
    ]
    values, rows, entry_columns = (np.concatenate(block) for block in zip(*blocks, strict=True))
    shape = (buckets + 2 * groups + 1, columns)
    matrix = coo_array((values, (rows, entry_columns)), shape=shape).tocsr()
    low = np.concatenate([sizes, np.full(2 * groups + 1, -np.inf)])
    high = np.concatenate([sizes, np.zeros(2 * groups), [gpus]])
    fits = padded <= capacity
    most = np.concatenate([(np.array(sizes)[:, None] * fits).ravel(), np.ones(groups), [np.inf]])
    objective = np.zeros(columns)
    objective[-1] = 1.0
    whole = np.ones(columns)
    whole[-1] = 0
    solved = milp(
        objective,
        constraints=LinearConstraint(matrix, low, high),
        bounds=Bounds(np.zeros(columns), most),
        integrality=whole,
        options={"time_limit": limit_s},
    )
    if solved.x is None:
        return None
    counts: npt.NDArray[np.int64] = np.rint(solved.x[:pairs]).astype(np.int64)
    return counts.reshape(buckets, groups)
