"""A planning service that never ends its answer: one deadline for all of it, and a bound on it."""

import re
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from seqplan.runtime.errors import PlanError, PlanTimeout
from seqplan.runtime.sources import http_source
from seqplan.runtime.sources.http_connection import MOST_BYTES
from seqplan.runtime.sources.http_source import HttpSource

PIECES = 100
"""Sent one by one: as long as it takes to send them an answer must not take."""

Talk = Callable[[socket.socket, threading.Event], None]


def _drip(opening: bytes, piece: bytes) -> Talk:
    def talk(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(opening)
        for _ in range(PIECES):
            if ended.wait(0.1):
                return
            connection.sendall(piece)

    return talk


def _flood(opening: bytes, piece: bytes) -> Talk:
    def talk(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(opening)
        while not ended.is_set():
            connection.sendall(piece)

    return talk


OK = b"HTTP/1.1 200 OK\r\n"
DRIPPED = {
    "body": _drip(OK + b"Content-Length: 100000\r\n\r\n", b"x"),
    "headers": _drip(OK, b"X-Header: x\r\n"),
    "a header": _drip(OK + b"X-Header: ", b"x"),
    "100 Continue": _drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunks": _drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}
ENDLESS = {
    "chunks": _flood(
        OK + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n" % (1 << 20, b"x" * (1 << 20))
    ),
    "until it closes": _flood(OK + b"\r\n", b"x" * (1 << 20)),
    "as announced": _flood(OK + b"Content-Length: %d\r\n\r\n" % (1 << 40), b"x" * (1 << 20)),
}


@contextmanager
def _service(talk: Talk) -> Iterator[tuple[HttpSource, threading.Event]]:
    """A source of a service that sends this; the event is set when it has sent everything."""
    listener, ended, said_all = (
        socket.create_server(("127.0.0.1", 0)),
        threading.Event(),
        threading.Event(),
    )

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                with suppress(OSError), connection:
                    connection.recv(65536)
                    talk(connection, ended)
                    if not ended.is_set():
                        said_all.set()

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    # Not the common folder: a later source of another service at this port would send it.
    with tempfile.TemporaryDirectory() as queue:
        source = HttpSource(url, "job", outage_s=0.2, queue_folder=queue)
        try:
            yield source, said_all
        finally:
            ended.set()
            source.close()
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()


@pytest.mark.parametrize("resource", DRIPPED)
def test_an_answer_that_drips_in_is_too_late(resource: str) -> None:
    with _service(DRIPPED[resource]) as (source, said_all):
        with pytest.raises(PlanTimeout, match=r"no answer within 0\.(2|1\d+) s"):
            source.view(1, 0, 0.2)
        assert not said_all.is_set()


def test_an_acknowledgement_that_drips_in_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "LAST_ACKNOWLEDGEMENTS_S", 0.5)
    warning = "1 acknowledgements are not received: .* for the job's next start"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with _service(DRIPPED["body"]) as (source, said_all):
            late = r"acknowledging step 1 of rank 0: not received for"
            with pytest.raises(PlanTimeout, match=late):
                source.acknowledge(1, 0, None)
            assert not said_all.is_set()
    assert re.search(warning, str(warned[0].message))


@pytest.mark.parametrize("resource", ENDLESS)
def test_an_answer_has_a_bound(resource: str) -> None:
    with (
        _service(ENDLESS[resource]) as (source, _),
        pytest.raises(PlanError, match=f"more than {MOST_BYTES} bytes"),
    ):
        source.view(1, 0, 60)
