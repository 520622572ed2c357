"""Meaning and example of every field and parameter of the interface, by name.

A name means the same everywhere. One that does not is there as ``SCHEMA.name``, or
``OPERATION.name`` of a parameter, too. The examples of fields make those of responses.
"""

from __future__ import annotations

from typing import Any

_DIGEST = f"sha256:{64 * '0'}"
_STRATEGY = [{"scheme": {"tp": 4, "pp": 1, "ulysses": 1, "ring": 1}, "count": 16}]

DESCRIBED: dict[str, tuple[str, Any]] = {
    "accepted": ("Number of batches that were taken.", 2),
    "acknowledged": ("Last acknowledged step of each rank, −1 for none.", [17, 17, 16, 17]),
    "after": ("`next` of the page before.", ""),
    "list_steps.after": ("`next` of the page before.", 17),
    "ahead": ("Planned steps beyond the slowest rank.", 6),
    "asked_at": ("Unix time (s) of the last request for a plan.", 1764150000),
    "at": ("Unix time (s), 0 for the begin.", 1764150000),
    "batches": ("Batches in ascending order of step.", []),
    "bytes_per_token": ("UTF-8 bytes that are counted as a token of text.", 4.0),
    "capacity": ("Tokens that a micro-batch holds in the phase; null for any number.", 8192),
    "carry_over": ("Sequences drawn and not yet used: none between steps.", []),
    "continues": ("Job that this one continues, with the step from which on.", None),
    "NewJob.continues": ("Job that is continued.", {"job": "run1", "step": 500}),
    "count_slowest": ("Number of ranks that are at the slowest step.", 1),
    "cursor": ("`next` of the page before; empty for the first one.", ""),
    "SamplerStateResponse.cursor": ("Sequences of the epoch that earlier steps used.", 34816),
    "digest": ("Digest of the plan that the rank follows.", _DIGEST),
    "document": ("What `seqplan propose` writes, once it is ready.", None),
    "done": ("Finished parts of the stage.", 3),
    "end": ("Whether there are no more batches.", False),
    "epoch": ("Number of earlier passes over the data set.", 0),
    "error": ("Why it failed; null otherwise.", None),
    "execution": (
        "uniform, static, regroup or lockstep; null for what the trainer runs.",
        "static",
    ),
    "expired_steps": ("Number of first steps whose plans are deleted.", 0),
    "factor": ("How many times as long the rank takes; null if it is lost.", 1.3),
    "failed_step": ("Step whose planning failed; null for none.", None),
    "fastest": ("Last step that the fastest rank has acknowledged, −1 for none.", 18),
    "field": ("Field of a line to read; chosen by its name if not given.", "text"),
    "first_cursor": ("Sequences of the first epoch before the first step.", 0),
    "first_epoch": ("Epoch of the first step.", 0),
    "first_step": ("First step of the job.", 0),
    "format": ("Form of the body.", "jsonl"),
    "forward_fraction": ("Forward's share of forward and backward.", 0.33),
    "gap": ("Optimality gap: predicted time over the bound, less 1.", 0.0057),
    "gpus": ("Number of GPUs.", 16),
    "histogram": ("Buckets: [over, up to, sequences, tokens].", [[512, 1024, 300, 230400]]),
    "id": ("Name of the object.", "run1"),
    "idle_ranks": ("Ranks without a pipeline.", []),
    "ids": ("Indices of the sequences in the data set.", [5, 9, 0]),
    "items": ("Objects of the page.", []),
    "job": ("Id of a job.", "run1"),
    "kept_from": ("First step whose plan is kept.", 0),
    "kind": ("Whether a data set has sequences or a histogram.", "sequences"),
    "RevisionResponse.kind": ("Reason by kind: begin, request, refit or rollback.", "refit"),
    "last_planned_step": ("Last step with a plan; null for none.", 24),
    "last_step": ("Last step of the job; null if it is not known.", 999),
    "lengths": ("Id of a data set.", "LENGTHS"),
    "PushedBatch.lengths": ("Length of each sequence (tokens).", [812, 96, 2048]),
    "limit": ("Most objects of the page.", 100),
    "loads": ("Work in phases before the language model.", []),
    "longest": ("Longest sequence (tokens).", 32768),
    "look_ahead": ("Steps that are planned beyond the slowest rank.", 8),
    "loss_tokens": ("Tokens with a loss; by default Σ(length − 1).", 2953),
    "lost_ranks": ("Ranks that the job is planned without.", []),
    "lower_bound_ms": ("Proven bound on the time (ms).", 3391.0),
    "max_len": ("Longest sequence (tokens); longer ones are truncated.", 32768),
    "measured_ms": ("Measured time (ms); null if there is none.", 812.5),
    "Acks.measured_ms": ("Time of each rank (ms), null for none.", [812.5, 799.1]),
    "method": ("How strategies are found: search or eq4.", "search"),
    "micro_step_multiple": ("Of which the number of micro-steps is.", 1),
    "miscalibrated": ("Whether measured times are off the profile.", False),
    "name": ("Name of the profile.", "llama-7b-a800-80gb"),
    "PushedLoad.name": ("Name of the phase.", "vision"),
    "next": ("Cursor of the next page; null on the last.", None),
    "optimizer_shards": ("Ranks that share optimizer states; null for all.", None),
    "overhead_ms": ("Time of a micro-batch beyond its work (ms).", 1.0),
    "overlap": ("Share of the sync that computation hides.", 0.0),
    "pipelines": ("Pipelines with their micro-batches in time.", []),
    "CalibrationResponse.pipelines": (
        "Numbers of pipelines by why they count or not.",
        {"used": 96},
    ),
    "planned_steps": ("Number of planned steps.", 25),
    "planning_ms": ("Time that planning took (ms).", 18.2),
    "points": ("Number of latest points that are listed of each scheme.", 0),
    "predicted_ms": ("Predicted time of forward and backward (ms).", 3410.2),
    "profile": ("Id of an uploaded profile, or name of a shipped one.", "llama-7b-a800-80gb"),
    "progress": ("How far the making is; null if it is not running.", None),
    "proposal": ("Id of a proposal.", "PROPOSAL"),
    "rank": ("Number of a rank.", 3),
    "ranks": ("Numbers of ranks.", [0, 1]),
    "ranks_acknowledged": ("Number of ranks that have done the step.", 16),
    "ranks_measured": ("Number of ranks with a time of the step.", 16),
    "reason": ("Why the revision was made.", "measured times corrected the costs"),
    "refit": ("Whether measured times correct the costs of later steps.", False),
    "robust": ("Share by which a, b or c of the costs may be off.", 0.0),
    "schemes": ("Filters of schemes, such as tp4.pp2.", ["measured"]),
    "CalibrationResponse.schemes": ("Errors of predictions by scheme.", []),
    "seed": ("Seed of the order of batches, or of the search.", 0),
    "sequences": ("Number of sequences.", 70),
    "shipped": ("Names of profiles that ship.", ["llama-7b-a800-80gb"]),
    "simulated_ms": ("Simulated time of forward and backward (ms).", 3410.2),
    "since_acknowledged_s": ("Seconds since the last acknowledgement.", 1.5),
    "slowdown": ("Factors of ranks, 1 for as fast as the profile.", [1.0, 1.3, None]),
    "RevisionResponse.slowdown": ("Ranks that are slower or lost.", [{"rank": 2, "factor": None}]),
    "slowest": ("Last step that every rank but lost ones has done, −1 for none.", 17),
    "slowest_ranks": ("Some ranks that are at the slowest step.", [2]),
    "stage": ("Name of the stage.", "strategies"),
    "state": ("State of the job.", "planning"),
    "list_progress.state": ("Only jobs in these states, with commas between them.", "planning"),
    "NewProposalId.state": ("State of the proposal.", "ready"),
    "ProposalOfList.state": ("State of the proposal.", "ready"),
    "ProposalResponse.state": ("State of the proposal.", "ready"),
    "StoppedResponse.state": ("State of the job.", "stopped"),
    "status": ("Status of the response.", 404),
    "step": ("Number of a step.", 17),
    "steps": ("Number of steps; null if batches are pushed.", 1000),
    "get_calibration.steps": ("Measured steps that are looked at.", 200),
    "CalibrationResponse.steps": (
        "First and last step that count, and their number.",
        {"first": 0},
    ),
    "strategy": ("Schemes and numbers of their pipelines.", _STRATEGY),
    "stuck": ("Whether no rank has acknowledged for long.", False),
    "sync": ("Time of the sync (ms), derived, or none.", "derived"),
    "title": ("Kind of the problem, for people.", "Not found"),
    "tokens": ("Number of tokens, of a step if it is one of a job.", 200000),
    "PushedLoad.tokens": ("Tokens of each sequence in the phase.", [0, 900]),
    "total": ("Number of parts of the stage.", 12),
    "trainer": ("Trainer that runs the plans; null for any.", "megatron"),
    "wait": ("Seconds to wait for the plan.", 20),
    "warning": ("Whether the profile holds no more.", False),
    "work_ms": ("Work of each sequence in the phase (ms).", [0.0, 80.5]),
    "world_size": ("Number of ranks.", 16),
}
"""By name: a sentence, and an example."""

CONTENTS: dict[str, Any] = {
    "get_profile": {"name": "llama-7b-a800-80gb"},
    "get_proposal_document": {"schema": 2, "strategies": []},
    "plan_batch": {"schema": 2, "step": 0, "digest": _DIGEST, "world_size": 16},
    "get_plan": {"schema": 2, "step": 17, "digest": _DIGEST, "world_size": 16},
    "get_view": {"step": 17, "rank": 3, "world_size": 16, "digest": _DIGEST, "pipelines": []},
    "explain_step": "step 17: 70 sequences, 199,872 tokens\n",
    "get_health": "ok\n",
    "get_readiness": "ready\n",
    "get_metrics": "seqplan_up 1\n",
}
"""Examples of documents, in part, and of texts, by operation."""


def describe_name(place: str, name: str) -> tuple[str, Any]:
    """Return the sentence and the example of a field or parameter; ``KeyError`` for none.

    ``place``: its schema or operation.
    """
    return DESCRIBED.get(f"{place}.{name}") or DESCRIBED[name]


def make_example(schemas: dict[str, Any], name: str) -> Any:
    """Make an example of a schema from its fields, unless it has one."""
    schema = schemas[name]
    if "example" in schema:
        return schema["example"]
    return {
        field: _make_field_example(schemas, name, field, described)
        for field, described in schema["properties"].items()
    }


def _make_field_example(
    schemas: dict[str, Any], schema: str, field: str, described: dict[str, Any]
) -> Any:
    for inner, form in ((described, 0), (described.get("items", {}), 1)):
        if "$ref" in inner:
            example = make_example(schemas, inner["$ref"].rpartition("/")[2])
            return [example] if form else example
    return describe_name(schema, field)[1]
