"""Random instances on which no bound may exceed the optimum; a few of them run as tests.

Many more than a test run affords: ``python stress_bounds.py COUNT [FIRST_SEED]``. Exits with 1 at
the first instance on which a bound exceeds the optimum, and prints it.
"""

import sys
import time
from dataclasses import replace

import numpy as np
from instances import fleet, random_case, random_case_with_modes
from oracles.exhaustive import any_strategy_optimum, step_optimum

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import bound_by_relaxation_ms, certify
from seqplan.planner.bounds.gpu_time import area_bound_ms, single_bound_ms
from seqplan.planner.bounds.held_value import Mixes, Relaxation
from seqplan.planner.bounds.relaxation import relax
from seqplan.planner.bounds.resources import count_resources
from seqplan.planner.placement.fleet import Floats, PipelineClass

SLACK = 1 + 1e-8


def main() -> int:
    examples, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began, tight = time.monotonic(), []
    for seed in range(first, first + examples):
        rng = np.random.default_rng(seed)
        classes, batch = (random_case_with_modes if seed % 2 else random_case)(rng)
        worst = worst_ratio(classes, batch, rng)
        if worst > SLACK:
            print(f"seed {seed}: bound/optimum {worst}\n{classes}\n{batch.lengths}")
            return 1
        tight.append(usual_ratio(classes, batch))
    quantiles = np.quantile(tight, [0.1, 0.5, 0.9]).round(4).tolist()
    print(f"{examples} instances in {time.monotonic() - began:.0f} s, none above the optimum")
    print(f"a strategy's bound over its optimum, 10 %, 50 % and 90 % of instances: {quantiles}")
    return 0


def usual_ratio(classes: tuple[PipelineClass, ...], batch: Batch) -> float:
    """The bound that a planned step gets, over the optimum."""
    optimum = step_optimum(classes, batch, least=True)
    low = max(single_bound_ms(classes, batch), area_bound_ms(classes, batch))
    relaxed = relax(classes, batch, optimum * 0.999)
    if relaxed is not None:
        low = max(low, bound_by_relaxation_ms(classes, batch, relaxed, low, optimum))
    return low / optimum


def worst_ratio(
    classes: tuple[PipelineClass, ...], batch: Batch, rng: np.random.Generator
) -> float:
    """The largest bound over the optimum: some times and perturbations, one and all strategies."""
    gpus = int(rng.integers(1, 5))
    worst = 0.0
    for within, optimum in (
        (None, step_optimum(classes, batch, least=True)),
        (gpus, any_strategy_optimum(classes, batch, gpus, least=True)),
    ):
        if not np.isfinite(optimum):
            continue
        if within is None:
            worst = max(worst, area_bound_ms(classes, batch) / optimum)
            worst = max(worst, worst_of_cases(classes, batch, optimum, rng) / optimum)
        worst = max(worst, single_bound_ms(classes, batch) / optimum)
        factors = (0.7, 1.0, 1.0 + 1e-6, 1.02, rng.uniform(0.8, 2.0), rng.uniform(1, 6))
        for factor in rng.choice(factors, 2):
            relaxed = relax(classes, batch, optimum * factor, within)
            for relaxation in perturbed(relaxed, classes, batch, rng):
                for stretch in (1e-6, rng.uniform(0, 1)):
                    high, low = optimum * (1 + stretch), optimum * rng.choice([0.0, 0.9])
                    bound = bound_by_relaxation_ms(classes, batch, relaxation, low, high, within)
                    worst = max(worst, bound / optimum)
    return worst


def worst_of_cases(
    classes: tuple[PipelineClass, ...], batch: Batch, optimum: float, rng: np.random.Generator
) -> float:
    """The largest bound of a strategy, with a case for each class that runs the longest."""
    some = fleet(classes)
    worst = certify(some, batch, optimum * rng.uniform(1, 1.5))
    cases = some.assume_longest(batch.longest)
    if not cases:
        return worst
    least = np.inf
    for assumed in cases:
        relaxed = relax(assumed.classes, batch, optimum * rng.uniform(0.9, 1.2))
        least = min(
            least,
            *(
                bound_by_relaxation_ms(assumed.classes, batch, priced, 0.0, optimum * 1.5)
                for priced in perturbed(relaxed, assumed.classes, batch, rng)
            ),
        )
    return max(worst, least)


def perturbed(
    relaxation: Relaxation | None,
    classes: tuple[PipelineClass, ...],
    batch: Batch,
    rng: np.random.Generator,
) -> list[Relaxation]:
    """The relaxation itself, a disturbed one, and values and mixes that are plain noise."""
    n = len(batch.distinct)
    count = int(rng.integers(1, 5))
    levels = np.unique([0, *rng.integers(1, batch.longest + 2, count).tolist()])
    values = rng.uniform(0, 1, n) ** rng.choice([1, 4]) * batch.distinct ** rng.choice([0, 1, 2])
    number = count_resources(classes)
    even = [rng.dirichlet([0.3] * number, size=int(rng.integers(1, 8))) for _ in classes]
    peaked = [
        rng.dirichlet([0.3] * number, size=len(levels) if pc.least_bubbles else 0) for pc in classes
    ]
    noise = Relaxation(
        scale=1.0,
        pipelines=np.ones(len(classes)),
        values=values,
        mixes=tuple(Mixes(*rows) for rows in zip(even, peaked, strict=True)),
        levels=levels,
    )
    if relaxation is None:
        return [noise]
    values = relaxation.values * rng.uniform(0.7, 1.3, n)
    even = [_blurred(mixes.even, rng) for mixes in relaxation.mixes]
    peaked = [_blurred(mixes.peaked, rng) for mixes in relaxation.mixes]
    disturbed = replace(
        relaxation,
        values=values,
        mixes=tuple(Mixes(*rows) for rows in zip(even, peaked, strict=True)),
    )
    return [relaxation, disturbed, noise]


def _blurred(mixes: Floats, rng: np.random.Generator) -> Floats:
    changed = mixes + rng.uniform(0, 0.3) * rng.dirichlet([0.3] * mixes.shape[1], size=len(mixes))
    return np.asarray(changed / changed.sum(axis=1, keepdims=True))


if __name__ == "__main__":
    sys.exit(main())
