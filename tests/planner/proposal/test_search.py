"""The search over all strategies for one batch, between its bound and the optimum."""

from hypothesis import example, given, settings
from instances import ClusterCase, clusters
from oracles.exhaustive import any_strategy_optimum

from seqplan import Batch, Scheme
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.bounds.all_strategies import AllStrategies, all_strategies_bound_ms
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.fill import Filler
from seqplan.planner.placement.fleet import Fleet
from seqplan.planner.proposal.search import search

SLOW_TO_FIT = (
    {
        Scheme(2, 2): SchemeModel(Scheme(2, 2), Latency(0.0, 0.1, 0.0), 22),
        Scheme(3, 1): SchemeModel(Scheme(3, 1), Latency(0.0, 0.2 / 3, 9.0), 23),
    },
    Batch.from_lengths([3, 20, 20]),
    3,
)
"""Most of the time is launch overhead: the GPUs needed fall slower than the time rises."""


@settings(max_examples=53)
@example(SLOW_TO_FIT)
@given(clusters())
def test_the_bound_over_all_strategies_holds_and_search_stays_above_it(case: ClusterCase) -> None:
    models, batch, gpus = case
    models = {scheme: model for scheme, model in models.items() if scheme.gpus <= gpus}
    models = {s: m for s, m in models.items() if m.max_sequence >= batch.longest} or {}
    if not models:
        return
    all_strategies = AllStrategies(models, gpus)
    best = any_strategy_optimum(all_strategies.classes, batch, gpus)
    least = any_strategy_optimum(all_strategies.classes, batch, gpus, least=True)
    for strategy in search(all_strategies, batch):
        assert strategy.gpus <= gpus
        filling = dispatch(Filler(Fleet.from_strategy(strategy, models), batch), best)
        assert filling.objective_ms >= best * (1 - 1e-9)
        bound = all_strategies_bound_ms(all_strategies, batch, filling.objective_ms)
        assert bound <= least * (1 + 1e-9)
