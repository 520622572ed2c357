"""Plan ↔ JSON (plan format, schema 2): canonical text out, checked fields in."""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecodeError
from typing import Any

from seqplan.plans.format.canonical import canonical_json, digest_of, parse_json
from seqplan.plans.format.decode import PlanError, PlanReader
from seqplan.plans.load import PhaseLoad
from seqplan.plans.plan import SCHEMA, Plan, PlannedPipeline, check_plan
from seqplan.plans.recomputation import write_mode

__all__ = ["PlanError", "digest", "from_json", "to_json"]


def to_json(plan: Plan) -> str:
    """Write the plan as one line of canonical JSON, digest included, without a line end.

    Canonical: UTF-8, keys sorted, no spaces, floats as Python's shortest repr, millisecond
    fields always floats. Raises ``PlanError`` for a value JSON cannot hold (NaN, infinity, numpy
    integers).
    """
    check_plan(plan)
    body, sealed = _seal(_to_fields(plan), f"plan of step {plan.step}")
    # "digest" sorts before every other field of the format, so it can be put in front.
    return f'{{"digest":"{sealed}",{body[1:]}'


def digest(plan: Plan) -> str:
    """Return ``sha256:`` and the hex SHA-256 of the canonical JSON without its ``digest`` field."""
    check_plan(plan)
    return _seal(_to_fields(plan), f"plan of step {plan.step}")[1]


def from_json(text: str | bytes, *, strict: bool = True, origin: str = "plan") -> Plan:
    """Read the plan written in ``text``; bytes are UTF-8.

    Checks field names, types, ranges of integers and the digest, not the invariants between
    fields (that is ``lint``). ``strict`` rejects unknown fields, otherwise they are ignored, yet
    covered by the digest. Raises ``PlanError`` that begins with ``origin``.
    """
    if not isinstance(text, str | bytes):
        raise TypeError(f"text: {text!r:.60}. Give the JSON of a plan, as to_json writes it")
    try:
        raw = parse_json(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise PlanError(f"{origin}: not UTF-8: {error.reason}. Name a plan file") from None
    except ValueError as error:
        fix = "It ends within a plan; copy it again" if _is_cut(error) else "Name a plan file"
        raise PlanError(f"{origin}: not a JSON plan: {error}. {fix}") from None
    plan = PlanReader(origin, strict).plan(raw)
    claimed = raw.pop("digest")
    _, actual = _seal(raw, origin)
    if claimed != actual:
        raise PlanError(f"{origin}: digest: {claimed!r} does not match the content, {actual!r}")
    return plan


def _is_cut(error: ValueError) -> bool:
    """Return whether a text ends within an object."""
    if not isinstance(error, JSONDecodeError) or not error.doc.startswith("{"):
        return False
    return error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")


def _seal(fields: Mapping[str, Any], origin: str) -> tuple[str, str]:
    """Write ``fields`` as canonical JSON; return it and its digest."""
    try:
        body = canonical_json(fields)
    except ValueError as error:
        raise PlanError(
            f"{origin}: cannot be written as JSON: {error}. Use finite numbers and text"
        ) from None
    return body, digest_of(body)


def _to_fields(plan: Plan) -> dict[str, Any]:
    return {
        **_sync_fields(plan.sync_ms),
        **_layout_fields(plan),
        **({} if plan.expert_parallel == 1 else {"expert_parallel": plan.expert_parallel}),
        **({"shapes": plan.shapes} if plan.shapes else {}),
        **({"lost_ranks": plan.lost_ranks} if plan.lost_ranks else {}),
        "schema": SCHEMA,
        "step": plan.step,
        "provenance": {
            "version": plan.provenance.version,
            "seed": plan.provenance.seed,
            "profile": plan.provenance.profile,
            "proposal": plan.provenance.proposal,
            **({"robust": float(plan.provenance.robust)} if plan.provenance.robust else {}),
        },
        "world_size": plan.world_size,
        "sequences": {
            "ids": plan.ids,
            "lengths": plan.lengths,
            **({"loads": [_load_fields(load) for load in plan.loads]} if plan.loads else {}),
        },
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
                **_sync_fields(entry.sync_ms),
            }
            for entry in plan.selection
        ],
    }


def _load_fields(load: PhaseLoad) -> dict[str, Any]:
    return {
        "name": load.name,
        "tokens": load.tokens,
        "work_ms": [float(ms) for ms in load.work_ms],
        "overhead_ms": float(load.overhead_ms),
        **({} if load.capacity is None else {"capacity": load.capacity}),
    }


def _sync_fields(sync_ms: float | None) -> dict[str, float]:
    """Return the field if there is a sync; plans without one are as before."""
    return {} if sync_ms is None else {"sync_ms": float(sync_ms)}


def _layout_fields(plan: Plan) -> dict[str, float]:
    """Return bound and gap of the layout if they are known."""
    bound_ms, gap = plan.layout_lower_bound_ms, plan.layout_gap
    if bound_ms is None or gap is None:
        return {}
    return {"layout_lower_bound_ms": float(bound_ms), "layout_gap": float(gap)}


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
                **write_mode(batch.recompute),
                **({"shared_ms": float(batch.shared_ms)} if batch.shared_ms else {}),
            }
            for batch in pipeline.micro_batches
        ],
        "predicted_ms": float(pipeline.predicted_ms),
    }
    if pipeline.micro_step is not None:
        fields["micro_step"] = pipeline.micro_step
    if pipeline.slowdown != 1:
        fields["slowdown"] = float(pipeline.slowdown)
    return fields
