"""Small random classes, fleets and batches, chosen to be awkward rather than typical."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from seqplan import Batch, Scheme, Strategy
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.placement.fill import Filling
from seqplan.planner.placement.fill_tables import ClassCosts, FillTables
from seqplan.planner.placement.fleet import ClassMode, Fleet, PipelineBins, PipelineClass
from seqplan.planner.placement.greedy import estimate_ms
from seqplan.planner.simulation.one_f_one_b import simulate_ms

Case = tuple[tuple[PipelineClass, ...], Batch]
ClusterCase = tuple[dict[Scheme, SchemeModel], Batch, int]
"""Models by scheme, a batch and a number of GPUs."""

LLAMA_32B = {
    model.scheme: model
    for model in load_shipped("llama-32b-a800-80gb").restrict(measured=True).usable(64, 32768)
}
"""The schemes of a shipped profile that fit 64 GPUs."""

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
    return Batch.from_lengths(lengths)


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
        pipeline = draw(pipeline_classes(batch, holds_longest=not classes))
        classes.append(replace(pipeline, count=count))
        left -= count
    return tuple(draw(st.permutations(classes))), batch


def fleet(classes: tuple[PipelineClass, ...]) -> Fleet:
    """A fleet of these classes; its strategy only names them."""
    names = Strategy.from_counts(
        {Scheme(tp=k + 1): pipeline.count for k, pipeline in enumerate(classes)}
    )
    return Fleet(names, classes)


def random_case(rng: np.random.Generator) -> Case:
    """The same kind of case from a generator, a hundred times as fast."""
    longest = int(rng.choice([4, 8, 24, 60]))
    if rng.random() < 0.5:
        lengths = rng.integers(1, longest + 1, int(rng.integers(1, 8)))
    else:
        pool = rng.integers(1, longest + 1, int(rng.integers(1, 4)))
        lengths = rng.choice(pool, int(rng.integers(1, 14)))
    batch = Batch.from_lengths(lengths.tolist())
    classes: list[PipelineClass] = []
    left = int(rng.integers(1, 4))
    while left:
        count = int(rng.integers(1, left + 1))
        classes.append(random_class(rng, batch, count, holds_longest=not classes))
        left -= count
    return tuple(classes[i] for i in rng.permutation(len(classes))), batch


def add_modes(pipeline: PipelineClass, rng: np.random.Generator) -> PipelineClass:
    """Up to four recomputation modes, the last as the class: faster ones hold less."""
    modes = [ClassMode(pipeline.a, pipeline.b, pipeline.c, pipeline.capacity, "mode 0")]
    for number in range(1, int(rng.integers(2, 5))):
        slower = modes[-1]
        capacity = int(slower.capacity * rng.uniform(0.2, 0.95)) // pipeline.unit * pipeline.unit
        if capacity < 1:
            break
        modes.append(
            ClassMode(
                slower.a * rng.uniform(0.6, 1.05),
                slower.b * rng.uniform(0.6, 1.0),
                slower.c * rng.uniform(0.5, 1.2),
                capacity,
                f"mode {number}",
                forward_fraction=1 / 3 - 0.03 * number,
            )
        )
    return replace(pipeline, modes=tuple(modes[::-1]) if len(modes) > 1 else ())


def random_case_with_modes(rng: np.random.Generator) -> Case:
    """A random case some of whose classes have recomputation modes."""
    classes, batch = random_case(rng)
    return tuple([add_modes(k, rng) if rng.random() < 0.8 else k for k in classes]), batch


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


@st.composite
def clusters(draw: st.DrawFn) -> ClusterCase:
    """Schemes of up to 3 · 2 GPUs that mostly hold the batch."""
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=5))
    models = {}
    for tp, pp in draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=3, unique=True
        )
    ):
        latency = Latency(
            draw(st.sampled_from([0.0, 0.01, 0.1])) / tp,
            draw(st.sampled_from([0.2, 1.0])) / tp,
            draw(st.sampled_from([0.0, 1.0, 9.0])),
        )
        scheme = Scheme(tp=tp, pp=pp)
        models[scheme] = SchemeModel(scheme, latency, max(lengths) * draw(st.integers(1, 4)) + tp)
    least = min(scheme.gpus for scheme in models)
    return models, Batch.from_lengths(lengths), draw(st.integers(least, least + 3))


def batch_of(seed: int, sequences: int = 120) -> Batch:
    """Long-tailed lengths up to 32,768."""
    drawn = np.exp(np.random.default_rng(seed).normal(6.5, 1.4, sequences))
    return Batch.from_lengths(np.clip(drawn, 1, 32768).astype(int).tolist())


def placed(batch: Batch, filling: Filling) -> list[int]:
    """How many sequences of each distinct length a placement holds."""
    counts = [0] * len(batch.distinct)
    for pipelines in filling.bins:
        for pipeline in pipelines:
            for micro in pipeline:
                for i, n in micro:
                    counts[i] += n
    return counts


def time_placed(costs: ClassCosts, bins: PipelineBins, *, in_order: bool) -> float:
    """The estimate of a pipeline's micro-batches, or their time in 1F1B in this order (ms)."""
    if not in_order or costs.pp == 1:
        return estimate_ms(costs, bins)
    of_modes = []
    for micro in bins:
        tokens = sum(n * int(costs.padded_lengths[i]) for i, n in micro)
        of_modes.append(
            min(
                (sum(n * float(work[i]) for i, n in micro) + mode.c, mode.forward_fraction)
                for mode, work in zip(costs.modes, costs.work_ms, strict=True)
                if tokens <= mode.capacity
            )
        )
    return simulate_ms([ms for ms, _ in of_modes], costs.pp, [share for _, share in of_modes])


def assert_sound(some: Fleet, batch: Batch, filling: Filling, *, in_order: bool = False) -> None:
    """Complete, within MaxLen, and with the times that its micro-batches have."""
    assert placed(batch, filling) == batch.multiplicity.tolist()
    tables = FillTables.from_batch(batch)
    lengths = tables.lengths
    for pipeline_class, pipelines, times in zip(
        some.classes, filling.bins, filling.pipeline_ms, strict=True
    ):
        assert len(pipelines) == pipeline_class.count
        for pipeline, time in zip(pipelines, times, strict=True):
            costs = tables.find_costs(pipeline_class)
            assert time == pytest.approx(time_placed(costs, pipeline, in_order=in_order))
            for micro in pipeline:
                padded = sum(
                    -(-lengths[i] // pipeline_class.unit) * pipeline_class.unit * n
                    for i, n in micro
                )
                assert padded <= pipeline_class.capacity
