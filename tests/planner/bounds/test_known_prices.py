"""Prices of earlier programs prove no more than the program of a step, and change no result."""

import numpy as np

from seqplan import Batch, Scheme, Workload
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.bounds import known_prices, relaxation
from seqplan.planner.bounds.known_prices import KnownPrices, recall_prices
from seqplan.planner.bounds.relaxation import solve_scale
from seqplan.planner.placement.fleet import PipelineClass

SCHEMES = ("tp4", "tp8", "tp4.pp2", "tp4.r2")
GPUS = 64


def _classes() -> list[PipelineClass]:
    models = Workload(GPUS, 32768, 200_000).models(load_shipped("llama-32b-a800-80gb"))
    return [PipelineClass.from_model(models[Scheme.parse(scheme)], 1) for scheme in SCHEMES]


def _batches(number: int) -> list[Batch]:
    random = np.random.default_rng(0)
    lengths = [np.clip(np.exp(random.normal(7, 1.3, 60)), 8, 20000) for _ in range(number)]
    return [Batch(k, tuple(range(60)), tuple(map(int, of))) for k, of in enumerate(lengths)]


def test_known_prices_prove_no_more_than_the_scale() -> None:
    classes, tight, programs = _classes(), 0, 0
    prices = KnownPrices()
    for batch in _batches(12):
        for time_ms in (3000.0, 4500.0, 9000.0):
            states = relaxation._make_states(classes, batch, time_ms, GPUS, relaxation.COARSE)
            solution = relaxation._solve_states(classes, batch, time_ms, GPUS, relaxation.COARSE)
            if states is None or solution is None:
                continue
            _, eligible, of_class = states.stack()
            ladders = [of.ladder for of in states.of_classes]
            sizes = np.array([k.gpus for k in classes])[of_class] / GPUS
            shares = [of.shares for of in states.of_classes]
            proven = prices.prove_scale(ladders, shares, eligible, states.weights, sizes)
            assert proven <= solution.scale * (1 + 1e-9)
            prices.add(ladders, solution.duals)
            same = prices.prove_scale(ladders, shares, eligible, states.weights, sizes)
            tight += same > solution.scale * 0.97
            programs += 1
    assert programs >= 30
    assert tight > programs // 2


def test_known_prices_change_no_result() -> None:
    classes = _classes()

    def scales(batches: list[Batch]) -> dict[int, float | None]:
        found = {}
        for batch in batches:
            found[batch.step] = solve_scale(classes, batch, 4500.0, GPUS, 0.5)
        return found

    batches = _batches(40)
    recall_prices.cache_clear()
    forward = scales(batches)
    assert forward == scales(batches[::-1])
    assert None in forward.values()
    assert set(forward.values()) != {None}
    recall_prices.cache_clear()
    alone = {}
    for batch in batches:
        recall_prices.cache_clear()
        alone |= scales([batch])
    assert alone == forward
    assert recall_prices(tuple(classes))._of_programs.maxlen == known_prices.KEPT
