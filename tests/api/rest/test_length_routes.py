"""Data sets known by counts, and uploads that are malformed."""

import json
from pathlib import Path

import numpy as np
import pytest
from service_process import npy, serving_here
from stocked_service import DATA, MAX_LEN, WORLD, Stocked

from seqplan.costs.lengths import parse_histogram, representative

LLAMA, GPT = "llama-7b-a800-80gb", "gpt-7b-a100-40gb"


def test_a_data_set_known_by_its_histogram(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        exact = served.ok("POST", "/v1/lengths", DATA.read_bytes())
        shown = served.ok("GET", f"/v1/lengths/{exact['id']}")
        rows = shown["histogram"]
        assert shown["kind"] == "sequences"
        counts = served.ok("POST", "/v1/lengths?format=histogram", rows)
        assert counts["id"] != exact["id"]
        assert [counts[name] for name in ("sequences", "tokens")] == [
            *(exact["sequences"], exact["tokens"])
        ]
        stored = served.ok("GET", f"/v1/lengths/{counts['id']}")
        assert (stored["kind"], stored["histogram"]) == ("histogram", rows)
        kinds = {row["id"]: row["kind"] for row in served.ok("GET", "/v1/lengths")["items"]}
        assert kinds == {exact["id"]: "sequences", counts["id"]: "histogram"}
        assert served.ok("POST", "/v1/lengths?format=histogram", rows)["id"] == counts["id"]
        # Good for a proposal, which is that of the lengths that represent it.
        request = {"profile": LLAMA, "gpus": WORLD, "max_len": MAX_LEN, "tokens": 8000}
        proposal = served.proposal({**request, "lengths": counts["id"]})
        document = served.ok("GET", f"/v1/proposals/{proposal}/document")
        assert document["lengths"]["sequences"] == exact["sequences"]
        # Not for drawing.
        job = {"proposal": proposal, "lengths": counts["id"], "steps": 3}
        problem = served.problem("POST", "/v1/jobs", job, 409)
        assert problem["type"].endswith("only-counts")
        assert "known by their histogram only" in problem["detail"]
        served.ok("POST", "/v1/jobs", {"id": "drawn", **job, "lengths": exact["id"]})
        assert served.send("GET", "/v1/jobs/drawn/plans/0?wait=30").status == 200
        # Without tokens, sequences are spread evenly over their bucket.
        plain = [[0, 100, 10], [100, 200, 0], [200, 400, 4]]
        even = served.ok("POST", "/v1/lengths?format=histogram", plain)
        lengths = representative(parse_histogram(json.dumps(plain).encode(), "body"))
        assert [even[name] for name in ("sequences", "tokens", "longest")] == [
            *(14, int(lengths.sum()), int(lengths.max()))
        ]
        again = served.ok("GET", f"/v1/lengths/{even['id']}")["histogram"]
        assert served.ok("POST", "/v1/lengths?format=histogram", again)["id"] == even["id"]
        assert served.send("DELETE", f"/v1/lengths/{even['id']}").status == 204


@pytest.mark.parametrize(
    ("format", "body", "detail"),
    [
        ("npy", npy(np.array([5, 0, -1])), "body: index 1: length 0 is not positive"),
        ("npy", npy(np.ones(9, np.int64))[:-8], "body: is not a whole .npy file"),
        ("npy", b"", "body: is empty"),
        ("jsonl", b'{"length":5}\n{"length":0}\n', "body: line 2: length 0 is not positive"),
        ("txt", b"5\n6\nx\n", "body: line 3: 'x' is not an integer"),
        ("histogram", b"[[0,8,1],[4,9,1]]", "body[1][0]: 4 is below 8"),
        ("histogram", b"", "body: is not JSON"),
    ],
)
def test_malformed_lengths(stocked: Stocked, format: str, body: bytes, detail: str) -> None:
    problem = stocked.served.problem("POST", f"/v1/lengths?format={format}", body)
    assert problem["detail"].startswith(detail)


CHAT = b'{"messages":[{"role":"user","content":"abcdefgh"}]}\n'


@pytest.mark.parametrize(
    ("query", "body", "tokens"),
    [
        ("bytes_per_token=4", b'{"text":"abcdefgh"}\n', 2),
        ("bytes_per_token=4", CHAT, 7),
        ("bytes_per_token=2&field=b", b'{"a":"abcdefgh","b":"abcdefghij"}\n', 5),
        ("field=b", b'{"a":3,"b":7}\n', 7),
    ],
)
def test_lengths_of_text(stocked: Stocked, query: str, body: bytes, tokens: int) -> None:
    uploaded = stocked.served.ok("POST", f"/v1/lengths?format=jsonl&{query}", body)
    assert uploaded["tokens"] == tokens


@pytest.mark.parametrize(
    ("query", "body", "detail"),
    [
        ("format=jsonl", b'{"text":"abc"}\n',
         "body: field 'text' is text. Estimate its tokens with bytes_per_token=4 in the query"),
        ("format=jsonl", CHAT, "body: line 1 holds conversations. Estimate its tokens with"),
        ("format=jsonl&bytes_per_token=4", b'{"length":5,"text":"abc"}\n',
         "bytes_per_token 4: no text of the sources is read. Name its field with field, or"),
        ("format=jsonl", b'{"a":5}\n',
         "body: line 1: none of the fields length, num_tokens, input_ids, tokens, ids, text, nor "),
        ("format=jsonl&bytes_per_token=0", CHAT, "query.bytes_per_token: "),
        ("format=jsonl&bytes_per_token=nan", CHAT, "query.bytes_per_token: "),
        ("bytes_per_token=4", b"5", "query.bytes_per_token: npy has no text or fields. Leave it"),
        ("format=txt&field=a", b"5", "query.field: txt has no text or fields. Leave it out"),
        ("format=jsonl&field=b", b'{"a":3}\n', "body: line 1: no field 'b'"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_counted(
    stocked: Stocked, query: str, body: bytes, detail: str
) -> None:
    problem = stocked.served.problem("POST", f"/v1/lengths?{query}", body)
    assert problem["detail"].startswith(detail)


def test_more_sequences_than_may_be(stocked: Stocked) -> None:
    path = "/v1/lengths?format=histogram"
    problem = stocked.served.problem("POST", path, [[0, 8, 10**30]], 413)
    assert problem["detail"] == "more than 200000000 sequences"
