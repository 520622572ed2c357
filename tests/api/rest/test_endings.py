"""Aborted uploads and shutdown of a service: a line, no trace."""

import signal
import socket
import time
from pathlib import Path

import pytest
from logged_service import serving_logged
from service_process import PATIENCE_S, Served, wait_until

BODY = {
    "upload": b"POST /v1/lengths HTTP/1.1\r\n",
    "JSON": b"POST /v1/jobs/none/batches HTTP/1.1\r\nContent-Type: application/json\r\n",
}


def _begun(served: Served, request_kind: str) -> socket.socket:
    """A connection on which a body has begun to come in, and the service waits for the rest."""
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        BODY[request_kind]
        + b"Host: localhost\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n"
    )
    assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(b"xxxx")
    return connection


def test_a_broken_off_upload_is_a_line(tmp_path: Path) -> None:
    log, files = tmp_path / "log", tmp_path / "s.db.files"
    with serving_logged(log, "--store", tmp_path / "s.db", "--port", 0) as served:
        for _ in range(3):
            with _begun(served, "upload"):
                wait_until(lambda: [*files.glob("*/body.npy")])
            wait_until(lambda: not [*files.glob("*/body.npy")])
        _begun(served, "JSON").close()
        assert served.send("GET", "/readyz").status == 200
    text = log.read_text()
    assert "Traceback" not in text
    assert text.count("POST /v1/lengths: broken off within the body\n") == 3


@pytest.mark.parametrize("request_kind", BODY)
@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_it_ends_without_a_trace(
    tmp_path: Path, request_kind: str, signals: tuple[signal.Signals, ...]
) -> None:
    log = tmp_path / "log"
    with serving_logged(log, "--store", tmp_path / "s.db", "--port", 0) as served:
        assert served.send("GET", "/readyz").status == 200
        with _begun(served, request_kind) as connection:
            if request_kind == "upload":
                wait_until(lambda: [*tmp_path.glob("s.db.files/*/body.npy")])
            for number in signals:
                served.process.send_signal(number)
                time.sleep(0.3)  # two at once are one
            answer = connection.recv(4096)
        served.process.wait(PATIENCE_S)
    text = log.read_text()
    assert "Traceback" not in text
    assert "is cut off: the service ends" in text
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert served.process.returncode == (143 if signals[0] == signal.SIGTERM else 130)
    left = sorted(path.name for path in (tmp_path / "s.db.files").iterdir())
    assert left == ["lengths", "lock", "store-id"]
