"""Tokens: who may read, who may write, and when none is needed."""

import socket
from pathlib import Path

import numpy as np
from command_line import call, complaint, succeeded
from service_process import serving_here
from stocked_service import DATA


def test_tokens(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    tokens = {
        scope: succeeded(
            call("serve", "--store", store, "--add-token", scope, "--scope", scope)
        ).strip()
        for scope in ("read", "write")
    }
    again = complaint(call("serve", "--store", store, "--add-token", "read"))
    assert "there is a token 'read' already" in again
    assert not any(token.encode() in store.read_bytes() for token in tokens.values())
    with serving_here(store) as served:
        assert served.send("GET", "/healthz").status == 200
        reply = served.send("GET", "/v1/jobs")
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert reply.headers["content-type"] == "application/problem+json"
        served.headers["Authorization"] = "Bearer wrong"
        assert served.send("GET", "/metrics").status == 401
        served.headers["Authorization"] = f"Bearer {tokens['read']}"
        assert served.ok("GET", "/v1/jobs")["items"] == []
        assert served.problem("POST", "/v1/jobs", {"proposal": "x"}, 403)
        metrics = served.send("GET", "/metrics").body.decode()
        assert 'seqplan_requests_total{status="401"} 2.0' in metrics  # rejected, and counted
        served.headers["Authorization"] = f"Bearer {tokens['write']}"
        assert served.problem("POST", "/v1/jobs", {"proposal": "x"}, 422)


def test_beyond_loopback_only_with_tokens(tmp_path: Path) -> None:
    outcome = call("serve", "--store", tmp_path / "s.db", "--host", "0.0.0.0", "--port", 0)
    assert "the store has no tokens" in complaint(outcome)


def test_a_store_in_use(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db"):
        outcome = call("serve", "--store", tmp_path / "s.db", "--port", 0)
    assert "another service is using this store" in complaint(outcome)


def test_a_port_in_use_leaves_no_store(tmp_path: Path) -> None:
    """Of a sidecar, too, before it makes a proposal."""
    np.save(tmp_path / "lengths.npy", np.load(DATA)[:3000])
    job = tmp_path / "job.toml"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        job.write_text(
            'profile = "llama-7b-a800-80gb"\nlengths = "lengths.npy"\ngpus = 4\nmax_len = 4096\n'
            f"steps = 3\nport = {port}\n"
        )
        before = sorted(tmp_path.iterdir())
        for arguments in (
            ("serve", "--store", tmp_path / "s.db", "--port", port),
            ("sidecar", "--job", job),
        ):
            line = complaint(call(*arguments))
            assert line == f"--host 127.0.0.1 --port {port}: Address already in use. Name another"
            assert sorted(tmp_path.iterdir()) == before


def test_addresses_and_stores_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, and long enough to be read as one\n")
    for arguments, message in [
        (("--store", tmp_path / "s.db", "--port", "70000"), "--port must be 0 to 65535: 70000"),
        (("--store", "mysql://host/db"), "must be sqlite or postgresql"),
        (("--store", "sqlite://"), "a store in memory would lose plans"),
        (("--store", "postgresql+psycopg://host/db"), "name a folder"),
        (("--store", tmp_path / "text.db"), "file is not a database"),
        (("--store", tmp_path / "none" / "s.db"), "none does not exist. Create it"),
    ]:
        assert message in complaint(call("serve", *arguments))
        assert [path.name for path in tmp_path.iterdir()] == ["text.db"]
