"""Connections: too many, silent, half closed, or no HTTP at all; others go on."""

import logging
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fresh_python import run_python
from logged_service import serving_logged
from service_process import PATIENCE_S, Served, serving_here

MOST_OF_PEER = 20


def _connect(served: Served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.settimeout(PATIENCE_S)
    return connection


def _read_all(connection: socket.socket) -> bytes:
    """Read until the service ends the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    """A service for 40 connections, half of them of one address."""
    with serving_here(tmp_path / "s.db", open_files=128 + 2 * MOST_OF_PEER) as served:
        yield served


def test_one_address_does_not_lock_others_out(
    small: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(_connect(small)) for _ in range(MOST_OF_PEER)]
        with _connect(small) as one_more:
            assert _read_all(one_more) == b""
        with _connect(small) as and_another:
            assert _read_all(and_another) == b""
        # From another address of loopback.
        host, port = small.url.removeprefix("http://").split(":")
        source = ("127.0.0.2", 0)
        with socket.create_connection((host, int(port)), PATIENCE_S, source) as other:
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(15) == b"HTTP/1.1 200 OK"
        assert len(silent) == MOST_OF_PEER
    logged = [line for line in caplog.messages if "the most for one address" in line]
    assert logged == ["127.0.0.1 has 20 connections, the most for one address: more are closed"]


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET / HTTP/1.1\r\nHost: x\r\nA: b"])
@pytest.mark.parametrize("earlier", [False, True])
def test_headers_that_do_not_come_end_the_connection(
    small: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    earlier: bool,
) -> None:
    monkeypatch.setattr("seqplan.api.rest.connections.HEADERS_S", 0.1)
    if earlier and not sent:
        pytest.skip("an idle connection that is kept is not late")
    with _connect(small) as connection:
        if earlier:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not connection.recv(4096).endswith(b"ok\n"):
                pass
        connection.sendall(sent)
        assert _read_all(connection) == b""
    assert "127.0.0.1: no request within 0.1 s" in caplog.messages


def test_headers_that_do_not_end_end_the_connection(
    small: Served, caplog: pytest.LogCaptureFixture
) -> None:
    line = b"X: %s\r\n" % (b"a" * 100_000)
    with _connect(small) as connection:
        connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(100 * line)
    assert "127.0.0.1: headers over 262144 bytes" in caplog.messages
    assert small.send("GET", "/v1/jobs", headers={"X": "a" * 60_000}).status == 200


def test_a_client_that_only_reads_any_more_is_answered(small: Served) -> None:
    with _connect(small) as connection:
        connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = _read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b'{"items":[],"next":null}')


def test_a_scanner_is_one_line(small: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(50):
        with _connect(small) as connection:
            connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert _read_all(connection).startswith(b"HTTP/1.1 400")
    assert caplog.messages.count("127.0.0.1: no HTTP request") == 1
    assert not [line for line in caplog.messages if "Invalid HTTP" in line]


def test_the_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    program = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (200, {hard}))\n"
        "from seqplan.api.rest.connections import open_files, raise_file_limit\n"
        "print(open_files(), raise_file_limit(), open_files())"
    )
    assert run_python("-c", program).split() == ["200", str(hard), str(hard)]
    with serving_logged(tmp_path / "log", "--store", tmp_path / "s.db", "--port", 0) as served:
        limits = Path(f"/proc/{served.process.pid}/limits").read_text()
    limit = re.search(r"Max open files +(\d+) +(\d+)", limits)
    assert limit[1] == limit[2]
