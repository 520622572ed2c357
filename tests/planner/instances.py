"""Small random classes, fleets and batches, chosen to be awkward rather than typical."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.fleet import Fleet, PipelineClass
from seqplan.plans.scheme import Scheme, Strategy

Case = tuple[tuple[PipelineClass, ...], Batch]

_QUADRATIC = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3])
_LINEAR = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.5])
_OVERHEAD = st.sampled_from([0.0, 0.0, 0.01, 0.5, 2.0, 10.0, 40.0])


@st.composite
def batches(draw: st.DrawFn, most: int = 7, longest: int = 24) -> Batch:
    """Up to ``most`` sequences of different lengths, or up to 3 lengths that recur."""
    length = st.integers(1, longest)
    if draw(st.booleans()):
        lengths = draw(st.lists(length, min_size=1, max_size=most))
    else:
        pool = draw(st.lists(length, min_size=1, max_size=3, unique=True))
        lengths = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=most + 3))
    return Batch.of_lengths(lengths)


@st.composite
def pipeline_classes(draw: st.DrawFn, batch: Batch, holds_longest: bool) -> PipelineClass:
    """A class of one pipeline: any depth, coefficients with zeros, a tight or a loose MaxLen."""
    a, b = draw(_QUADRATIC), draw(_LINEAR)
    if a == b == 0:
        b = 1.0
    unit = draw(st.sampled_from([1, 1, 1, 2, 4, 8]))
    longest = -(-batch.longest // unit) * unit
    least = longest if holds_longest else unit
    loose = draw(st.sampled_from([0, 0, 1, 3, longest // unit, 6 * longest // unit]))
    if holds_longest or draw(st.booleans()):
        capacity = least + loose * unit
    else:
        capacity = unit * draw(st.integers(1, max(1, longest // unit)))
    return PipelineClass(
        pp=draw(st.sampled_from([1, 2, 2, 3, 3, 4])),
        a=a,
        b=b,
        c=draw(_OVERHEAD),
        capacity=capacity,
        unit=unit,
        count=1,
        gpus=draw(st.integers(1, 3)),
    )


@st.composite
def cases(draw: st.DrawFn, most: int = 7, pipelines: int = 3) -> Case:
    """Classes with at most ``pipelines`` pipelines together, and a batch that some can run."""
    batch = draw(batches(most))
    classes: list[PipelineClass] = []
    left = pipelines
    while left and (not classes or draw(st.booleans())):
        count = draw(st.integers(1, left))
        item = draw(pipeline_classes(batch, holds_longest=not classes))
        classes.append(replace(item, count=count))
        left -= count
    return tuple(draw(st.permutations(classes))), batch


def fleet(classes: tuple[PipelineClass, ...]) -> Fleet:
    """A fleet of these classes; its strategy only names them."""
    names = Strategy.of({Scheme(tp=k + 1): item.count for k, item in enumerate(classes)})
    return Fleet(names, classes)


def random_case(rng: np.random.Generator) -> Case:
    """The same kind of case from a generator, a hundred times as fast."""
    longest = int(rng.choice([4, 8, 24, 60]))
    if rng.random() < 0.5:
        lengths = rng.integers(1, longest + 1, int(rng.integers(1, 8)))
    else:
        pool = rng.integers(1, longest + 1, int(rng.integers(1, 4)))
        lengths = rng.choice(pool, int(rng.integers(1, 14)))
    batch = Batch.of_lengths(lengths.tolist())
    classes: list[PipelineClass] = []
    left = int(rng.integers(1, 4))
    while left:
        count = int(rng.integers(1, left + 1))
        classes.append(random_class(rng, batch, count, holds_longest=not classes))
        left -= count
    return tuple(classes[i] for i in rng.permutation(len(classes))), batch


def random_class(
    rng: np.random.Generator, batch: Batch, count: int, holds_longest: bool
) -> PipelineClass:
    a = float(rng.choice([0.0, 0.001, 0.01, 0.05, 0.3]))
    b = float(rng.choice([0.0, 0.1, 0.5, 1.0, 2.5]))
    unit = int(rng.choice([1, 1, 1, 2, 4, 8]))
    units = -(-batch.longest // unit)
    if holds_longest:
        units += int(rng.choice([0, 0, 1, 3, units, 6 * units]))
    else:
        units = int(rng.integers(1, 2 * units + 1))
    return PipelineClass(
        pp=int(rng.choice([1, 2, 2, 3, 4])),
        a=a,
        b=b if a or b else 1.0,
        c=float(rng.choice([0.0, 0.0, 0.01, 0.5, 2.0, 10.0, 40.0])),
        capacity=units * unit,
        unit=unit,
        count=count,
        gpus=int(rng.integers(1, 4)),
    )
