"""Requests for proposals, and their results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from command_line import call, succeeded
from service_process import PATIENCE_S
from stocked_service import DATA, MAX_LEN, Stocked

from seqplan.api.service.proposal_request import parse_request
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.sync.times import GivenSyncTimes, LayoutSyncTimes

LLAMA, GPT = "llama-7b-a800-80gb", "gpt-7b-a100-40gb"


def _settled(stocked: Stocked, request: dict[str, Any]) -> dict[str, Any]:
    key = stocked.served.ok("POST", "/v1/proposals", request)["id"]
    ends = time.monotonic() + PATIENCE_S
    while (row := stocked.served.ok("GET", f"/v1/proposals/{key}"))["state"] == "running":
        assert time.monotonic() < ends, row
        time.sleep(0.05)
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize(
    ("gpus", "options", "fields"),
    [
        (
            4,
            ["--overlap", "0.25", "--seed", "3", "--schemes", "measured", "--tokens", "8000"],
            {"overlap": 0.25, "seed": 3, "schemes": "measured", "tokens": 8000},
        ),
        (
            2,
            ["--sync-ms", "10,90.5", "--optimizer-shards", "2", "--include-flagged"],
            {"sync_ms": [10, 90.5], "optimizer_shards": 2, "include_flagged": True},
        ),
        (2, ["--method", "eq4", "--tokens", "20000"], {"method": "eq4", "tokens": 20000}),
        (
            4,
            ["--trainer", "megatron", "--tokens", "8000"],
            {"trainer": "megatron", "tokens": 8000},
        ),
        (
            4,
            ["--lockstep", "--micro-step-multiple", "2"],
            {"lockstep": True, "micro_step_multiple": 2},
        ),
    ],
)
def test_the_same_document_as_from_the_command_line(
    stocked: Stocked, tmp_path: Path, gpus: int, options: list[str], fields: dict[str, Any]
) -> None:
    output = tmp_path / "proposal.json"
    line = ["propose", "--profile", LLAMA, "--gpus", str(gpus), "--lengths", str(DATA)]
    line += ["--max-len", str(MAX_LEN), *options, "-o", str(output)]
    succeeded(call(*line))
    request = {"profile": LLAMA, "gpus": gpus, "lengths": stocked.lengths, "max_len": MAX_LEN}
    key = stocked.served.proposal({**request, **fields})
    reply = stocked.served.send("GET", f"/v1/proposals/{key}/document")
    assert reply.headers["content-type"] == "application/json"
    assert reply.body == output.read_bytes()


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"sync_ms": 1, "propagation_only": True}, "propagation_only leaves the sync out"),
        ({"layout": "tp3"}, "has no scheme of layout tp3"),
        ({"micro_step_multiple": 2}, "micro_step_multiple is for rounds; give lockstep with it"),
        ({"lockstep": True, "static_groups": True}, "lockstep forms groups anew in each round"),
        ({"layout": "u2"}, "layout wants tp and pp"),
        ({"schemes": "some"}, "body.schemes: "),
        ({"overlap": 1.5, "sync_ms": 1}, "body.overlap: "),
        ({"sync_ms": -1}, "body.sync_ms: wants times of 0 or more ms"),
        ({"sync_ms": []}, "body.sync_ms: wants times of 0 or more ms"),
        ({"sync_ms": [1, 2, 3]}, "body.sync_ms: wants times of 0 or more ms"),
        ({"sync_ms": "usual"}, "body.sync_ms: wants times of 0 or more ms"),
        ({"optimizer_shards": 9}, "optimizer_shards must be an integer from 1 to the 8 GPUs"),
        ({"optimizer_shards": 0}, "body.optimizer_shards: "),
        ({"include_flagged": "yes"}, "body.include_flagged: "),
        ({"method": "guess"}, "body.method: "),
        ({"profile": GPT, "sync_ms": 1}, f"but profile {GPT} is of ZeRO-3"),
        ({"profile": GPT, "method": "eq4"}, "method eq4 chooses strategies for a whole step"),
        ({"sync_ms": 1, "method": "eq4"}, "method eq4 does not weigh the sync"),
        ({"trainer": "nemo"}, "unknown trainer 'nemo'; there are seqplan, seqplan-huggingface"),
        ({"trainer": "transformers"}, "is of ZeRO-1, but transformers runs ZeRO-3"),
        ({"tokens": 10**15}, f"tokens, fewer than a step of {10**15}, which would repeat"),
    ],
)
def test_options_that_cannot_be(stocked: Stocked, fields: dict[str, Any], detail: str) -> None:
    request = {
        "profile": LLAMA,
        "gpus": 8,
        "lengths": stocked.lengths,
        "max_len": MAX_LEN,
        **fields,
    }
    assert detail in stocked.served.problem("POST", "/v1/proposals", request)["detail"]


def test_a_proposal_that_fails_says_why(stocked: Stocked) -> None:
    request = {"profile": LLAMA, "gpus": 1, "lengths": stocked.lengths, "max_len": MAX_LEN}
    row = _settled(stocked, request)
    assert (row["state"], row["document"]) == ("failed", None)
    assert row["error"].startswith(f"1 GPU is too few for {LLAMA}")
    problem = stocked.served.problem("GET", f"/v1/proposals/{row['id']}/document", status=409)
    assert problem["detail"] == f"proposal {row['id']} is failed"
    assert stocked.served.problem("GET", "/v1/proposals/none/document", status=404)
    assert stocked.served.send("DELETE", f"/v1/proposals/{row['id']}").status == 204


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        ({}, type(None)),  # before the sync was derived, it was left out unless requested
        ({"sync_ms": None, "overlap": 0.0}, type(None)),
        ({"sync_ms": "published", "overlap": 0.25}, LayoutSyncTimes),
        ({"sync_ms": [900.0]}, GivenSyncTimes),
        ({"sync_ms": None, "propagation_only": False}, LayoutSyncTimes),
        ({"propagation_only": True}, type(None)),
    ],
)
def test_requests_of_earlier_versions_keep_their_meaning(
    stored: dict[str, Any], kind: type[object]
) -> None:
    request = {"gpus": 8, "max_len": MAX_LEN, "tokens": 8000, "seed": 0, **stored}
    assert isinstance(parse_request(load_shipped(LLAMA), request)["sync"], kind)
