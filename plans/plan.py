"""The execution plan of one step, as plain frozen data. Times are milliseconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from seqplan.plans.load import PhaseLoad
from seqplan.plans.scheme import Scheme, Strategy

SCHEMA = 2


@dataclass(frozen=True)
class Provenance:
    """Who made the plan: package version, seed, digests of the profile and the proposal.

    ``robust``: share by which a, b or c of the costs may be off, 0 without it.
    """

    version: str
    seed: int
    profile: str
    proposal: str | None
    robust: float = 0.0


@dataclass(frozen=True)
class MicroBatch:
    """Sequences that run together: positions in ``Plan.ids``/``lengths``, in packed order.

    ``recompute``: its recomputation mode (``recomputation``), None if the profile has one.
    ``shared_ms``: the part of ``cost_ms`` that a block of expert parallelism spreads over its
    ranks, if the pipeline holds a part of a block only.
    """

    sequences: tuple[int, ...]
    tokens: int
    padded_tokens: int
    cost_ms: float
    recompute: str | None = None
    shared_ms: float = 0.0


@dataclass(frozen=True)
class PlannedPipeline:
    """One replica: its scheme, its global ranks (tp fastest, then ulysses, ring, pp), its work.

    ``micro_step`` is set where ranks run in lockstep only: micro-step k starts when micro-step k−1
    has ended on every rank; with stages it follows micro-step k−1 through them, each stage in 1F1B
    order of micro-steps. ``slowdown``: how many times as long its slowest rank takes as the profile
    has it, which times include.
    """

    scheme: Scheme
    ranks: tuple[int, ...]
    micro_batches: tuple[MicroBatch, ...]
    predicted_ms: float
    micro_step: int | None = None
    slowdown: float = 1.0


@dataclass(frozen=True)
class Considered:
    """A candidate of the step's selection; ``predicted_ms`` is None when its bound pruned it.

    With stages that of a candidate which was not chosen is an estimate, at least its bound.
    ``sync_ms``: as in the plan.
    """

    strategy: Strategy
    lower_bound_ms: float
    predicted_ms: float | None
    sync_ms: float | None = None


@dataclass(frozen=True, repr=False)
class Plan:
    """Everything the ranks need to run one step (plan format, schema 2).

    ``predicted_ms`` is the objective, never below the 1F1B simulation; ``lower_bound_ms`` is a
    proven lower bound on that objective over all dispatches and packings of this strategy (over all
    plans of its layout, if ranks regroup within the step) and ``gap`` = predicted / bound − 1.
    ``layout_lower_bound_ms`` is one over all plans of its layouts ⟨tp, pp⟩, whatever their groups,
    and ``layout_gap`` follows from it; None in plans that no planner made.
    ``expert_parallel``: the degree E by which experts are split, see ``experts``. ``loads``: work
    of the sequences before the language model; costs of micro-batches hold it. ``shapes``: tokens
    on a rank to which micro-batches are padded, ascending; none if each has its size.
    ``lost_ranks``: idle ones that the plan was made without. No time or bound holds ``sync_ms``:
    the time of the gradient sync next to it, as far as nothing hides it; None if strategies were
    chosen by computation alone.
    """

    step: int
    provenance: Provenance
    world_size: int
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    tokens: int
    loss_tokens: int
    pipelines: tuple[PlannedPipeline, ...]
    idle_ranks: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    predicted_ms: float
    lower_bound_ms: float
    gap: float
    selection: tuple[Considered, ...]
    sync_ms: float | None = None
    layout_lower_bound_ms: float | None = None
    expert_parallel: int = 1
    loads: tuple[PhaseLoad, ...] = ()
    shapes: tuple[int, ...] = ()
    lost_ranks: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Plan of step {self.step}: {len(self.ids)} sequence{'s' * (len(self.ids) != 1)}, "
            f"{self.tokens:,} tokens, "
            f"{self.strategy_text} on {self.world_size} ranks, {self.predicted_ms:,.1f} ms, "
            f"gap {100 * self.gap:.2f} %>"
        )

    @property
    def layout_gap(self) -> float | None:
        """Return predicted / layout bound − 1, to six decimals; None if no such bound is known."""
        bound_ms = self.layout_lower_bound_ms
        if bound_ms is None:
            return None
        return round(self.predicted_ms / bound_ms - 1, 6) if bound_ms > 0 else 0.0

    @property
    def strategy(self) -> Strategy:
        """Count the pipelines of each scheme, over all micro-steps."""
        return Strategy.from_counts(Counter(pipeline.scheme for pipeline in self.pipelines))

    @property
    def ranks_left(self) -> tuple[int, ...]:
        """List the ranks that are not lost, ascending."""
        lost = frozenset(self.lost_ranks)
        return tuple(rank for rank in range(self.world_size) if rank not in lost)

    @property
    def gpus_left(self) -> int:
        """Count the ranks that are not lost."""
        return self.world_size - len(self.lost_ranks)

    @property
    def regroups(self) -> bool:
        """Whether some rank is in several pipelines one after another, in micro-steps or not."""
        return self.strategy.gpus > self.world_size - len(self.idle_ranks)

    @property
    def strategy_text(self) -> str:
        """Write what runs, for people: ``1×tp16 + 12×tp4``, micro-steps parted by ``|``."""
        by_micro_step: dict[int | None, Counter[str]] = {}
        for pipeline in self.pipelines:
            by_micro_step.setdefault(pipeline.micro_step, Counter())[str(pipeline.scheme)] += 1
        return " | ".join(
            " + ".join(f"{n}×{scheme}" for scheme, n in counts.items())
            for counts in by_micro_step.values()
        )


def check_plan(plan: object) -> None:
    """Raise ``TypeError`` unless ``plan`` is a plan."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: {plan!r:.60}. Give a Plan, as from_json returns")
