"""The record of one step that loggers receive: predictions, measurements and rates."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from seqplan.costs.profile import Profile
from seqplan.planner.simulation.flops import model_flops, peak_flops
from seqplan.plans.plan import Plan
from seqplan.plans.schedule import predict_rank_times


@dataclass(frozen=True)
class StepMetrics:
    """One step; times in ms, shares between 0 and 1.

    ``predicted_ms``: forward and backward of the plan; ``sync_ms``: as in the plan;
    ``measured_ms``: micro-batches of the slowest of ``ranks_measured`` ranks with work, sync left
    out; ``error``: ``measured_ms`` over the prediction of the slowest rank's micro-batches, −1;
    ``imbalance``: (slowest − fastest) / fastest of the ranks' predicted times, of ranks with work;
    ``padding``: share of padding in the tokens that run; ``recomputation``: share of the padded
    tokens by mode, empty if the profile has one mode. Rates count the sync of the plan, and no
    optimizer; ``predicted_mfu`` and ``mfu``: model FLOPs with Σl² over the GPUs' dense bf16 peak.
    ``error``, ``tokens_per_s`` and ``mfu`` are None unless every rank with work was measured, both
    MFUs if the profile states no sizes or an unknown GPU.
    """

    step: int
    strategy: str
    tokens: int
    sequences: int
    predicted_ms: float
    sync_ms: float | None
    measured_ms: float | None
    ranks_measured: int
    error: float | None
    gap: float
    imbalance: float
    padding: float
    planning_ms: float | None
    predicted_tokens_per_s: float
    tokens_per_s: float | None
    predicted_mfu: float | None
    mfu: float | None
    recomputation: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        *,
        profile: Profile | None = None,
        planning_ms: float | None = None,
        measured_ms: float | None = None,
        ranks_measured: int = 0,
    ) -> StepMetrics:
        """Compute the record of a plan.

        The measured time of a step is its prediction, scaled by ``error``, with the plan's sync:
        exactly the slowest rank's time if pipelines run independently.
        """
        batches = [batch for pipeline in plan.pipelines for batch in pipeline.micro_batches]
        padded = sum(batch.padded_tokens for batch in batches)
        until_ms = _time_until_ends(plan)
        rank_ms = predict_rank_times(plan)
        error = compute_error(max(rank_ms.values()), len(rank_ms), measured_ms, ranks_measured)
        sync_ms = plan.sync_ms or 0.0
        predicted_s = (plan.predicted_ms + sync_ms) / 1000
        measured_s = None if error is None else (plan.predicted_ms * (1 + error) + sync_ms) / 1000
        work_s = None if profile is None else _peak_seconds(plan, profile)
        return cls(
            step=plan.step,
            strategy=plan.strategy_text,
            tokens=plan.tokens,
            sequences=len(plan.ids),
            predicted_ms=plan.predicted_ms,
            sync_ms=plan.sync_ms,
            measured_ms=measured_ms,
            ranks_measured=ranks_measured,
            error=error,
            gap=plan.gap,
            imbalance=max(until_ms.values()) / min(until_ms.values()) - 1,
            padding=1 - sum(batch.tokens for batch in batches) / padded,
            planning_ms=planning_ms,
            predicted_tokens_per_s=plan.tokens / predicted_s,
            tokens_per_s=None if measured_s is None else plan.tokens / measured_s,
            predicted_mfu=None if work_s is None else work_s / predicted_s,
            mfu=None if work_s is None or measured_s is None else work_s / measured_s,
            recomputation=_mode_shares(plan, padded),
        )

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name, those that are known; modes as ``recomputation/MODE``."""
        fields = asdict(self)
        shares = fields.pop("recomputation")
        numbers = {
            name: float(value)
            for name, value in fields.items()
            if name not in ("step", "strategy") and value is not None
        }
        return {**numbers, **{f"recomputation/{mode}": share for mode, share in shares.items()}}

    def to_json(self) -> str:
        """Write the record as one line of JSON, without its end."""
        return json.dumps(asdict(self), ensure_ascii=False)


def compute_error(
    predicted_ms: float, ranks: int, measured_ms: float | None, ranks_measured: int
) -> float | None:
    """Return measured over predicted time −1; None unless all ranks with work were measured.

    Times of the slowest rank, of ``ranks`` with work of which ``ranks_measured`` were measured.
    None for a plan without predictions, too.
    """
    if measured_ms is None or ranks_measured < ranks or not predicted_ms:
        return None
    return measured_ms / predicted_ms - 1


def _time_until_ends(plan: Plan) -> dict[int, float]:
    """Return the predicted time (ms) of each rank with work until its pipelines end."""
    until_ms: defaultdict[int, float] = defaultdict(float)
    for pipeline in plan.pipelines:
        for rank in pipeline.ranks if pipeline.micro_batches else ():
            until_ms[rank] += pipeline.predicted_ms
    return dict(until_ms)


def _mode_shares(plan: Plan, padded: int) -> dict[str, float]:
    tokens: Counter[str] = Counter()
    for pipeline in plan.pipelines:
        for batch in pipeline.micro_batches:
            if batch.recompute is not None:
                tokens[batch.recompute] += batch.padded_tokens
    return {mode: count / padded for mode, count in sorted(tokens.items())}


def _peak_seconds(plan: Plan, profile: Profile) -> float | None:
    """Return how long the step's model FLOPs take at the peak of the GPUs left; None if unknown."""
    flops, peak = model_flops(profile.shape, plan.lengths), peak_flops(profile)
    return None if flops is None or peak is None else flops / (peak * plan.gpus_left)
