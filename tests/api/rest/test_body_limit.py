"""Bodies that are larger than they may be."""

import contextlib
import gzip
import http.client
import json

import pytest
from service_process import PATIENCE_S
from stocked_service import Stocked


def test_a_body_that_grows_beyond_the_limit(stocked: Stocked) -> None:
    """Sent in chunks, so that no header has its size."""
    host = stocked.served.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    connection.putrequest("POST", "/v1/jobs")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with contextlib.suppress(ConnectionError):
        for _ in range(2):
            connection.send(chunk)
    reply = connection.getresponse()
    assert (reply.status, json.loads(reply.read())["type"][-9:]) == (413, "too-large")
    connection.close()


@pytest.mark.parametrize("path", ["jobs", "jobs/none/acks", "lengths", "profiles", "profiles?a=1"])
def test_a_compressed_body_is_not_supported(stocked: Stocked, path: str) -> None:
    body = gzip.compress(b'{"step":0,"rank":0,"digest":null}')
    reply = stocked.served.send("POST", f"/v1/{path}", body, {"Content-Encoding": "gzip"})
    detail = "content-encoding: gzip is not supported. Send the body uncompressed"
    assert (reply.status, reply.json["detail"]) == (415, detail)
    assert reply.headers["content-type"] == "application/problem+json"
    plain = stocked.served.send("POST", "/v1/jobs", b"[]", {"Content-Encoding": "identity"})
    assert plain.json["detail"] == "body: must be an object"
