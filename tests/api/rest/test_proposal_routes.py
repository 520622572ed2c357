"""Requests for proposals, and their results."""

from pathlib import Path
from typing import Any

import pytest
from command_line import call, succeeded
from stocked_service import DATA, MAX_LEN, Stocked

from seqplan.api.service.proposal_request import parse_request
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.sync.times import GivenSyncTimes, LayoutSyncTimes

LLAMA = "llama-7b-a800-80gb"


@pytest.mark.parametrize(
    ("gpus", "options", "fields"),
    [
        (
            4,
            ["--sync", "overlap=0.25", "--seed", "3", "--schemes", "measured", "--tokens", "8000"],
            {"overlap": 0.25, "seed": 3, "schemes": ["measured"], "tokens": 8000},
        ),
        (
            2,
            ["--sync", "10,90.5", "--optimizer-shards", "2", "--schemes", "flagged"],
            {"sync": [10, 90.5], "optimizer_shards": 2, "schemes": ["flagged"]},
        ),
        (2, ["--method", "eq4", "--tokens", "20000"], {"method": "eq4", "tokens": 20000}),
        (4, ["--trainer", "megatron", "--tokens", "8000"], {"trainer": "megatron", "tokens": 8000}),
        (
            4,
            ["--execution", "lockstep", "--micro-step-multiple", "2"],
            {"execution": "lockstep", "micro_step_multiple": 2},
        ),
    ],
)
def test_the_same_document_as_from_the_command_line(
    stocked: Stocked, tmp_path: Path, gpus: int, options: list[str], fields: dict[str, Any]
) -> None:
    output = tmp_path / "proposal.json"
    line = ["propose", "--profile", LLAMA, "--gpus", str(gpus), str(DATA)]
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
        ({"schemes": ["tp3"]}, "has no scheme of layout tp3"),
        ({"micro_step_multiple": 2}, "micro_step_multiple 2: execution is regroup"),
        ({"execution": "micro-steps"}, "body.execution: "),
        ({"schemes": ["u2"]}, "schemes must be measured, flagged, epE or a layout: "),
        ({"schemes": "some"}, "body.schemes: "),
        ({"overlap": 1.5, "sync": 1}, "body.overlap: "),
        ({"sync": -1}, "body.sync: must be derived, none, or times of 0 or more ms"),
        ({"sync": []}, "body.sync: must be derived, none, or times of 0 or more ms"),
        ({"optimizer_shards": 9}, "optimizer_shards must be an integer from 1 to the 8 GPUs"),
        ({"optimizer_shards": 0}, "body.optimizer_shards: "),
        ({"include_flagged": True}, "body.include_flagged: is no field of this request. Leave it"),
        ({"profile": "llama-7b"}, "nor shipped; did you mean llama-7b-a800-80gb? Upload it, or"),
        ({"gpus": 0}, "body.gpus: Input should be greater than or equal to 1, not 0"),
        ({"method": "guess"}, "body.method: "),
        ({"trainer": "nemo"}, "trainer must be one of seqplan, seqplan-huggingface"),
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
    key = stocked.served.ok("POST", "/v1/proposals", request)["id"]
    row = stocked.served.settled(f"/v1/proposals/{key}", "running")
    assert (row["state"], row["document"]) == ("failed", None)
    assert row["error"].startswith(f"1 GPU is too few for {LLAMA}")
    problem = stocked.served.problem("GET", f"/v1/proposals/{row['id']}/document", status=409)
    assert problem["detail"] == f"proposal {row['id']} is failed"
    assert stocked.served.problem("GET", "/v1/proposals/none/document", status=404)
    assert stocked.served.send("DELETE", f"/v1/proposals/{row['id']}").status == 204


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        ({}, LayoutSyncTimes),
        ({"sync": "derived", "overlap": 0.25}, LayoutSyncTimes),
        ({"sync": [900.0]}, GivenSyncTimes),
        ({"sync": "none"}, type(None)),
    ],
)
def test_the_sync_of_a_request(stored: dict[str, Any], kind: type[object]) -> None:
    request = {"gpus": 8, "max_len": MAX_LEN, "tokens": 8000, "seed": 0, **stored}
    assert isinstance(parse_request(load_shipped(LLAMA), request)["sync"], kind)
