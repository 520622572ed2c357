"""Steps whose sequences have work before the language model, such as images in a vision encoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import inf

from seqplan.planner.batches.batch import Batch
from seqplan.planner.bounds.certificate import certify
from seqplan.planner.bounds.gpu_time import cheap_bound_ms, gpu_time_bound_ms
from seqplan.planner.bounds.linear_program import load_solver
from seqplan.planner.bounds.loads import bound_fleet_ms, bound_gpus_ms
from seqplan.planner.errors import OptionError
from seqplan.planner.placement.assembly import Selected, assemble, deal, with_bound
from seqplan.planner.placement.dispatch import dispatch
from seqplan.planner.placement.exchange_positions import exchange_positions
from seqplan.planner.placement.fill import Filler, Placement
from seqplan.planner.placement.slowdown import Slowdown, make_fleet_of, make_slow_fleet
from seqplan.planner.problem import PlanningOptions, PlanningProblem
from seqplan.planner.step.selection import list_considered, select_within
from seqplan.planner.step.slow_ranks import list_factors, list_layouts, select_uneven
from seqplan.planner.strategies.constructive import LayoutSchemes
from seqplan.planner.strategies.search import list_changes
from seqplan.planner.sync.times import NO_SYNC, layouts_of
from seqplan.plans.plan import Plan, Provenance
from seqplan.plans.scheme import Scheme, Strategy

MOST_STRATEGIES = 6
"""Strategies, the fastest for the lengths alone, that are placed."""

COARSE, MOST_CHANGES = 0.05, 30
"""Share above the bound of all groups from which on the best strategy is changed, as one sample may
have far more work than its length shows, and how many changes are placed at most."""


@dataclass
class _Reached:
    """The best placement so far; ``best_ms``: its time with sync; ``times``: of all placed (ms)."""

    best: Selected | None = None
    best_ms: float = inf
    times: dict[Strategy, float] = field(default_factory=dict)


class LoadsPlanner:
    """Plans steps with loads on pipelines that stay the same within a step.

    Of the strategies considered for the lengths, the fastest are placed; sequences are then
    exchanged between their pipelines. If the step stays far above the bound of all groups,
    homogeneous strategies and changes of the best follow. Ranks may be slow. ``OptionError`` for
    options and profiles that loads rule out: the encoder runs on all ranks of a pipeline, so
    schemes are without stages.
    """

    def __init__(
        self, problem: PlanningProblem, options: PlanningOptions, provenance: Provenance
    ) -> None:
        options.check_static("loads", problem)
        if options.shapes:
            raise OptionError("{0} with loads: not supported. Leave {0} out", "shapes")
        self.problem, self.options, self._provenance = problem, options, provenance
        gpus = problem.workload.gpus
        self._speeds = list_factors(options.slowdown, gpus) or Slowdown((1.0,) * gpus)
        if self._speeds.lost:
            raise OptionError(
                "loads with {0}: ranks {lost} are lost, which is not supported. Start the job "
                "without them",
                "slowdown",
                lost=list(self._speeds.lost),
            )
        self._models = {s: model for s, model in problem.models.items() if s.pp == 1}
        if not self._models:
            raise OptionError(
                "loads are for schemes without stages, of which profile {profile} has none that "
                "fits. Leave them out",
                profile=problem.profile.name,
            )
        if options.prove:
            load_solver()

    @cached_property
    def _layouts(self) -> list[LayoutSchemes]:
        return LayoutSchemes.list_from_models(self._models)

    def plan(self, batch: Batch) -> Plan:
        """Plan a batch; ``Infeasible`` if no scheme without stages holds a sequence."""
        problem, gpus = self.problem, self.problem.workload.gpus
        if self._speeds.differ:
            selected = select_uneven(
                problem,
                self._models,
                self._layouts,
                batch,
                self._speeds,
                proposed=list_layouts(problem),
                prove=False,
            )
        else:
            selected = select_within(problem, self._models, self._layouts, batch)
        selected = self._place(selected, batch)
        strategy = selected.placement.strategy
        return assemble(
            batch,
            selected,
            self._provenance,
            gpus,
            forward_fraction=problem.profile.forward_fraction,
            layout_bound_ms=self._layout_bound_ms(strategy, batch),
            placed=self._speeds.place(strategy),
        )

    def prove(self, plan: Plan) -> Plan:
        """Return the plan with the closest bound that can be proven of its strategy."""
        batch, fleet = Batch.from_plan(plan), make_fleet_of(plan, self._models)
        proven_ms = certify(fleet, batch, plan.predicted_ms)
        return with_bound(plan, max(proven_ms, bound_fleet_ms(fleet.classes, batch)))

    def _place(self, selected: Selected, batch: Batch) -> Selected:
        """Place the batch on the fastest strategies considered, and choose the best with loads."""
        times = self.problem.sync or NO_SYNC
        timed = {
            entry.strategy: entry.predicted_ms + times.of_strategy_ms(entry.strategy)
            for entry in selected.considered
            if entry.predicted_ms is not None
        }
        ranked = sorted(timed, key=lambda strategy: timed[strategy])[:MOST_STRATEGIES]
        reached = _Reached()
        first = dict.fromkeys([selected.placement.strategy, *ranked])
        for strategy in first:
            self._try_strategy(strategy, batch, selected, reached)
        self._change_best(set(first), batch, selected, reached)
        best = reached.best
        if best is None:
            raise AssertionError("the strategy of equal ranks can be placed, as no rank is lost")
        if self.options.prove:
            fleet, objective_ms = best.placement.fleet, best.placement.objective_ms
            proven_ms = certify(fleet, batch, objective_ms)  # of the language model alone
            best = replace(best, lower_bound_ms=max(best.lower_bound_ms, proven_ms))
        chosen = best.placement.strategy
        considered = [
            replace(entry, predicted_ms=reached.times.get(entry.strategy))
            for entry in selected.considered
        ]
        if all(entry.strategy != chosen for entry in considered):
            bound_ms, time_ms = best.lower_bound_ms, reached.times[chosen]
            considered.append(list_considered(chosen, bound_ms, time_ms, self.problem.sync))
        return replace(best, considered=tuple(considered))

    def _list_schemes(self, selected: Selected) -> list[Scheme]:
        """List the schemes of the candidates' layouts, or all without candidates."""
        layouts = layouts_of(s for entry in selected.considered for s, _ in entry.strategy.counts)
        if not self.problem.strategies:
            layouts = layouts_of(self._models)
        return [scheme for scheme in sorted(self._models) if (scheme.tp, scheme.pp) in layouts]

    def _try_strategy(
        self, strategy: Strategy, batch: Batch, selected: Selected, reached: _Reached
    ) -> bool:
        """Place the batch on a strategy; whether that is better than the best so far."""
        sync_ms = (self.problem.sync or NO_SYNC).of_strategy_ms(strategy)
        placed = self._place_strategy(strategy, batch, selected, reached.best_ms - sync_ms)
        if placed is None:
            return False
        reached.times[strategy] = placed[1]
        if placed[1] + sync_ms >= reached.best_ms:
            return False
        reached.best, reached.best_ms = placed[0], placed[1] + sync_ms
        return True

    def _change_best(
        self, visited: set[Strategy], batch: Batch, selected: Selected, reached: _Reached
    ) -> None:
        """Try homogeneous strategies, and changes of the best as long as they shorten the step.

        Until it is near the bound of all groups of its layouts. ``visited``: strategies that were
        tried.
        """
        gpus, schemes = self.problem.workload.gpus, self._list_schemes(selected)
        most, better = len(reached.times) + MOST_CHANGES, True
        untried: Iterable[Strategy] = (Strategy.from_counts({s: gpus // s.gpus}) for s in schemes)
        while better and reached.best is not None:
            strategy = reached.best.placement.strategy
            sync_ms = (self.problem.sync or NO_SYNC).of_strategy_ms(strategy)
            bound_ms = self._layout_bound_ms(strategy, batch) + sync_ms
            if reached.best_ms <= bound_ms * (1 + COARSE):
                return
            better = False
            for changed in chain(untried, list_changes(strategy, schemes, gpus)):
                if changed in visited or len(reached.times) >= most:
                    continue
                visited.add(changed)
                if self._try_strategy(changed, batch, selected, reached):
                    better = True
                    break

    def _place_strategy(
        self, strategy: Strategy, batch: Batch, selected: Selected, below_ms: float
    ) -> tuple[Selected, float] | None:
        """Place the batch on a strategy: the placement with positions, and its time (ms).

        None if ranks cannot be placed or do not hold the batch, or the bound is not below a time.
        """
        ranks = self._speeds.place(strategy)
        if ranks is None:
            return None
        fleet = make_slow_fleet(strategy, self._models, [factor for _, factor in ranks])
        if fleet.max_sequence < batch.longest:
            return None
        cheap_ms = cheap_bound_ms(fleet.classes, batch)
        bound_ms = max(cheap_ms, bound_fleet_ms(fleet.classes, batch))
        if bound_ms >= below_ms:
            return None
        filling = dispatch(Filler(fleet, batch), cheap_ms)
        if filling is None:
            return None
        placement = Placement(fleet, filling)
        micro_batches, time_ms = exchange_positions(
            fleet.pipelines, list(strategy), batch, deal(batch, placement), bound_ms
        )
        return Selected(placement, bound_ms, selected.considered, micro_batches), time_ms

    def _layout_bound_ms(self, strategy: Strategy, batch: Batch) -> float:
        """Bound all plans of a strategy's layouts without stages, whatever their groups (ms)."""
        layouts = layouts_of(scheme for scheme, _ in strategy.counts)
        of_layouts = [entry.classes for entry in self._layouts if entry.layout in layouts]
        classes, gpus = list(chain(*of_layouts)), self.problem.workload.gpus
        return max(gpu_time_bound_ms(classes, batch, gpus), bound_gpus_ms(classes, batch, gpus))
