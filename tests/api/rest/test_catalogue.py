"""What proposals are asked for with, data sets known by counts, and uploads that are malformed."""

from __future__ import annotations

import io
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_process import COMMAND, PATIENCE_S, serving
from stocked_service import DATA, MAX_LEN, WORLD, Stocked

from seqplan.profiler.lengths import parse_histogram, representative

LLAMA, GPT = "llama-7b-a800-80gb", "gpt-7b-a100-40gb"


def _settled(stocked: Stocked, asked: dict[str, Any]) -> dict[str, Any]:
    key = stocked.served.ok("POST", "/v1/proposals", asked)["id"]
    ends = time.monotonic() + PATIENCE_S
    while (found := stocked.served.ok("GET", f"/v1/proposals/{key}"))["state"] == "running":
        assert time.monotonic() < ends, found
        time.sleep(0.05)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("gpus", "options", "fields"),
    [
        (
            4,
            ["--exchange-ms", "published", "--overlap", "0.25", "--seed", "3"],
            {"exchange_ms": "published", "overlap": 0.25, "seed": 3},
        ),
        (
            4,
            ["--exchange-ms", "10,90.5", "--optimizer-shards", "4", "--include-flagged"],
            {"exchange_ms": [10, 90.5], "optimizer_shards": 4, "include_flagged": True},
        ),
        (4, ["--method", "eq4", "--tokens", "20000"], {"method": "eq4", "tokens": 20000}),
    ],
)
def test_the_same_document_as_from_the_command_line(
    stocked: Stocked, tmp_path: Path, gpus: int, options: list[str], fields: dict[str, Any]
) -> None:
    output = tmp_path / "proposal.json"
    line = [*COMMAND, "propose", "--profile", LLAMA, "--gpus", str(gpus), "--lengths", str(DATA)]
    line += ["--max-len", str(MAX_LEN), *options, "-o", str(output)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    asked = {"profile": LLAMA, "gpus": gpus, "lengths": stocked.lengths, "max_len": MAX_LEN}
    key = stocked.served.proposal({**asked, **fields})
    reply = stocked.served.ask("GET", f"/v1/proposals/{key}/document")
    assert reply.headers["content-type"] == "application/json"
    assert reply.body == output.read_bytes()


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"overlap": 0.5}, "overlap is of the exchange; give exchange_ms too"),
        ({"overlap": 1.5, "exchange_ms": 1}, "body.overlap: "),
        ({"exchange_ms": -1}, "body.exchange_ms: wants times of 0 or more ms"),
        ({"exchange_ms": []}, "body.exchange_ms: wants times of 0 or more ms"),
        ({"exchange_ms": [1, 2, 3]}, "body.exchange_ms: wants times of 0 or more ms"),
        ({"exchange_ms": "usual"}, "body.exchange_ms: wants times of 0 or more ms"),
        ({"optimizer_shards": 9}, "optimizer_shards must be an integer from 1 to the 8 GPUs"),
        ({"optimizer_shards": 0}, "body.optimizer_shards: "),
        ({"include_flagged": "yes"}, "body.include_flagged: "),
        ({"method": "guess"}, "body.method: "),
        ({"profile": GPT, "exchange_ms": 1}, f"but profile {GPT} is of ZeRO-3"),
        ({"profile": GPT, "method": "eq4"}, "method eq4 chooses strategies for a whole step"),
        ({"exchange_ms": 1, "method": "eq4"}, "method eq4 does not weigh the exchange"),
    ],
)
def test_options_that_cannot_be(stocked: Stocked, fields: dict[str, Any], detail: str) -> None:
    asked = {"profile": LLAMA, "gpus": 8, "lengths": stocked.lengths, "max_len": MAX_LEN, **fields}
    assert detail in stocked.served.problem("POST", "/v1/proposals", asked)["detail"]


def test_a_proposal_that_fails_says_why(stocked: Stocked) -> None:
    asked = {"profile": LLAMA, "gpus": 1, "lengths": stocked.lengths, "max_len": MAX_LEN}
    found = _settled(stocked, asked)
    assert (found["state"], found["document"]) == ("failed", None)
    assert found["error"].startswith(f"1 GPU is too few for {LLAMA}")
    told = stocked.served.problem("GET", f"/v1/proposals/{found['id']}/document", status=409)
    assert told["detail"] == f"proposal {found['id']} is failed"
    assert stocked.served.problem("GET", "/v1/proposals/none/document", status=404)
    assert stocked.served.ask("DELETE", f"/v1/proposals/{found['id']}").status == 204


def test_a_data_set_known_by_its_histogram(tmp_path: Path) -> None:
    with serving("--store", tmp_path / "s.db", "--port", 0) as served:
        exact = served.ok("POST", "/v1/lengths", DATA.read_bytes())
        shown = served.ok("GET", f"/v1/lengths/{exact['id']}")
        rows = shown["histogram"]
        assert shown["kind"] == "sequences"
        counts = served.ok("POST", "/v1/lengths?format=histogram", rows)
        assert counts["id"] != exact["id"]
        assert [counts[name] for name in ("sequences", "tokens")] == [
            *(exact["sequences"], exact["tokens"])
        ]
        kept = served.ok("GET", f"/v1/lengths/{counts['id']}")
        assert (kept["kind"], kept["histogram"]) == ("histogram", rows)
        kinds = {item["id"]: item["kind"] for item in served.ok("GET", "/v1/lengths")["items"]}
        assert kinds == {exact["id"]: "sequences", counts["id"]: "histogram"}
        assert served.ok("POST", "/v1/lengths?format=histogram", rows)["id"] == counts["id"]
        # Good for a proposal, which is that of the lengths that represent it.
        asked = {"profile": LLAMA, "gpus": WORLD, "max_len": MAX_LEN, "tokens": 8000}
        proposal = served.proposal({**asked, "lengths": counts["id"]})
        document = served.ok("GET", f"/v1/proposals/{proposal}/document")
        assert document["lengths"]["sequences"] == exact["sequences"]
        # Not for drawing.
        job = {"proposal": proposal, "lengths": counts["id"], "steps": 3}
        told = served.problem("POST", "/v1/jobs", job, 409)
        assert told["type"].endswith("only-counts")
        assert "known by their histogram only" in told["detail"]
        served.ok("POST", "/v1/jobs", {"id": "drawn", **job, "lengths": exact["id"]})
        assert served.ask("GET", "/v1/jobs/drawn/plans/0?wait=30").status == 200
        # Without tokens, sequences are spread evenly over their bucket.
        plain = [[0, 100, 10], [100, 200, 0], [200, 400, 4]]
        even = served.ok("POST", "/v1/lengths?format=histogram", plain)
        lengths = representative(parse_histogram(json.dumps(plain).encode(), "body"))
        assert [even[name] for name in ("sequences", "tokens", "longest")] == [
            *(14, int(lengths.sum()), int(lengths.max()))
        ]
        again = served.ok("GET", f"/v1/lengths/{even['id']}")["histogram"]
        assert served.ok("POST", "/v1/lengths?format=histogram", again)["id"] == even["id"]
        assert served.ask("DELETE", f"/v1/lengths/{even['id']}").status == 204


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("format", "body", "detail"),
    [
        ("npy", _npy(np.array([5, 0, -1])), "body: index 1: length 0 is not positive"),
        ("npy", _npy(np.array([5, 2**63], np.uint64)), "body: index 1: length 9223372036854775808"),
        ("npy", _npy(np.array([5.0])), "body: holds float64, lengths are integers"),
        ("npy", _npy(np.ones((2, 3), np.int64)), "body: has shape (2, 3)"),
        ("npy", _npy(np.ones(9, np.int64))[:-8], "body: is not a whole .npy file"),
        ("npy", _npy(np.array([], np.int64)), "body: holds no sequences"),
        ("npy", b"", "body: is empty"),
        ("jsonl", b'{"length":5}\n{"length":0}\n', "body: line 2: length 0 is not positive"),
        ("jsonl", b'{"length":5}\n{"size":5}\n', "body: line 2: no field 'length'"),
        ("jsonl", b'{"length":5}\n{"length":"x"}\n', "body: line 2: field 'length' holds a text"),
        ("jsonl", b'{"length":5}\n{"length":2.5}\n', "body: line 2: field 'length' is 2.5"),
        ("jsonl", b'{"length":5}\n{"length"\n', "body: line 2: is not JSON"),
        ("jsonl", b"[5]\n", "body: line 1: holds [5]"),
        ("txt", b"5\n6\nx\n", "body: line 3: 'x' is not an integer"),
        ("histogram", b"[[0,8,1],[4,9,1]]", "body[1][0]: 4 is below 8"),
        ("histogram", b"[[0,8,1.5]]", "body[0][2]: is 1.5, not an integer"),
        ("histogram", b"[]", "body: holds no sequences"),
        ("histogram", b"", "body: is not JSON"),
    ],
)
def test_malformed_lengths(stocked: Stocked, format: str, body: bytes, detail: str) -> None:
    told = stocked.served.problem("POST", f"/v1/lengths?format={format}", body)
    assert told["detail"].startswith(detail)


def test_more_sequences_than_may_be(stocked: Stocked) -> None:
    path = "/v1/lengths?format=histogram"
    told = stocked.served.problem("POST", path, [[0, 8, 10**30]], 413)
    assert told["detail"] == "more than 200000000 sequences"


@pytest.mark.parametrize(
    ("batch", "detail"),
    [
        ({"lengths": [5, 0]}, "body.batches[1].lengths[1]: "),
        ({"lengths": [5, 2.5]}, "body.batches[1].lengths[1]: "),
        ({"lengths": [5, "6"]}, "body.batches[1].lengths[1]: "),
        ({"lengths": [5, 4097]}, "body.batches[1].lengths[1]: 4097 is above the proposal's 4096"),
        ({"ids": [1, -2]}, "body.batches[1].ids[1]: "),
        ({"ids": [1, None]}, "body.batches[1].ids[1]: "),
        ({"ids": [1]}, "body.batches[1]: step 7: 1 ids but 2 lengths"),
        ({"ids": [], "lengths": []}, "body.batches[1]: step 7: the batch has no sequences"),
        ({"loss_tokens": 12}, "body.batches[1].loss_tokens: 12 is above the step's tokens"),
        ({"more": 1}, "body.batches[1].more: "),
    ],
)
def test_malformed_batches(stocked: Stocked, batch: dict[str, Any], detail: str) -> None:
    job = stocked.served.ok("POST", "/v1/jobs", {"proposal": stocked.proposal})["id"]
    good = {"step": 6, "ids": [1, 2], "lengths": [5, 6]}
    pushed = {"batches": [good, {**good, "step": 7, **batch}]}
    told = stocked.served.problem("POST", f"/v1/jobs/{job}/batches", pushed)
    assert told["detail"].startswith(detail)
    # Of a push that is refused nothing is kept.
    assert stocked.served.ok("POST", f"/v1/jobs/{job}/batches", {"batches": [good]})
    assert stocked.served.ask("DELETE", f"/v1/jobs/{job}").status == 204
