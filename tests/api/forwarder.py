"""A proxy on loopback: with TLS, or one that loses responses."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit


@contextmanager
def forwarding(
    url: str, *, lost_responses: int = 0, context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Forward connections to ``url``, each for one response; the first responses are lost."""
    target = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))
    left = [lost_responses]

    def forward(client: socket.socket) -> None:
        with (
            suppress(OSError),
            client,
            socket.create_connection((target.hostname, target.port)) as s,
        ):
            threading.Thread(target=copy, args=(client, s), daemon=True).start()
            first = s.recv(1 << 16)  # the service has handled the request
            if left[0] > 0:
                left[0] -= 1
                client.shutdown(socket.SHUT_RDWR)
                return
            client.sendall(first)
            copy(s, client)

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                if context is not None:
                    with suppress(OSError):
                        client = context.wrap_socket(client, server_side=True)
                threading.Thread(target=forward, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a self-signed certificate for 127.0.0.1; return its file and a server's context."""
    certificate, key = folder / "ca.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key,
         "-out", certificate, "-subj", "/CN=seqplan", "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True, check=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context
