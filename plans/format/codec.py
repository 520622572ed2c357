"""Plan ↔ JSON (plan format, schema 1): canonical text out, checked fields in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from seqplan.plans.format.decode import PlanError, PlanReader
from seqplan.plans.plan import SCHEMA, Plan, PlannedPipeline

__all__ = ["PlanError", "digest", "from_json", "to_json"]


def to_json(plan: Plan) -> str:
    """The plan as one line of canonical JSON, digest included, without a line end.

    Canonical: UTF-8, keys sorted, no spaces, floats as Python's shortest repr, millisecond
    fields always floats. Raises ``PlanError`` for a value JSON cannot hold (NaN, infinity, numpy
    integers).
    """
    body, sealed = _sealed(_to_fields(plan), f"plan of step {plan.step}")
    # "digest" sorts before every other field of the format, so it can be put in front.
    return f'{{"digest":"{sealed}",{body[1:]}'


def digest(plan: Plan) -> str:
    """``sha256:`` and the hex SHA-256 of the canonical JSON without its ``digest`` field."""
    return _sealed(_to_fields(plan), f"plan of step {plan.step}")[1]


def from_json(text: str, *, strict: bool = True, origin: str = "plan") -> Plan:
    """The plan written in ``text``.

    Checks field names, types, ranges of integers and the digest, not the invariants between
    fields (that is ``lint``). ``strict`` refuses unknown fields, otherwise they are ignored, yet
    covered by the digest. Raises ``PlanError`` that begins with ``origin``.
    """
    try:
        raw = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{origin}: not a JSON plan: {error}") from None
    plan = PlanReader(origin, strict).plan(raw)
    claimed = raw.pop("digest")
    _, actual = _sealed(raw, origin)
    if claimed != actual:
        raise PlanError(f"{origin}: digest: {claimed!r} does not match the content, {actual!r}")
    return plan


def _sealed(fields: Mapping[str, Any], origin: str) -> tuple[str, str]:
    """The canonical JSON of ``fields`` and its digest."""
    try:
        body = json.dumps(
            fields,
            ensure_ascii=False,
            allow_nan=False,
            check_circular=False,
            sort_keys=True,
            separators=(",", ":"),
        )
        return body, "sha256:" + hashlib.sha256(body.encode()).hexdigest()
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(f"{origin}: cannot be written as JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is written twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _to_fields(plan: Plan) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "step": plan.step,
        "planner": {
            "version": plan.planner.version,
            "seed": plan.planner.seed,
            "profile": plan.planner.profile,
            "proposal": plan.planner.proposal,
        },
        "world_size": plan.world_size,
        "sequences": {"ids": plan.ids, "lengths": plan.lengths},
        "tokens": plan.tokens,
        "loss_tokens": plan.loss_tokens,
        "pipelines": [_pipeline_fields(pipeline) for pipeline in plan.pipelines],
        "idle_ranks": plan.idle_ranks,
        "groups": plan.groups,
        "predicted_ms": float(plan.predicted_ms),
        "lower_bound_ms": float(plan.lower_bound_ms),
        "gap": float(plan.gap),
        "selection": [
            {
                "strategy": entry.strategy.as_list(),
                "lower_bound_ms": float(entry.lower_bound_ms),
                "predicted_ms": None if entry.predicted_ms is None else float(entry.predicted_ms),
            }
            for entry in plan.selection
        ],
    }


def _pipeline_fields(pipeline: PlannedPipeline) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "scheme": pipeline.scheme.as_dict(),
        "ranks": pipeline.ranks,
        "micro_batches": [
            {
                "sequences": batch.sequences,
                "tokens": batch.tokens,
                "padded_tokens": batch.padded_tokens,
                "cost_ms": float(batch.cost_ms),
            }
            for batch in pipeline.micro_batches
        ],
        "predicted_ms": float(pipeline.predicted_ms),
    }
    if pipeline.round is not None:
        fields["round"] = pipeline.round
    return fields
