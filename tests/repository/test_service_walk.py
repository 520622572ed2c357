"""From the service to a rank's view, as a reader of its page would type it."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from code_blocks import ROOT, read_blocks
from service_process import serving


def block(page: str, language: str, holding: str) -> str:
    blocks = [block for block in read_blocks(ROOT / page) if block.language == language]
    (shown,) = [block.text for block in blocks if holding in block.text]
    return shown


def typed(walk: str, port: str, folder: Path) -> str:
    """Run the walk in a shell, with a free port and separate files.

    It writes files, not pipes: the service goes on after it, and would keep a pipe open.
    """
    for written, here in (
        ("./run seqplan", str(Path(sys.executable).with_name("seqplan"))),
        ("out/seqplan.db", f"{folder}/seqplan.db"),
        ("8400", port),
        ("python3 -c", f"{sys.executable} -c"),
    ):
        assert written in walk
        walk = walk.replace(written, here)
    output, errors = folder / "output.txt", folder / "errors.txt"
    with output.open("w") as stdout, errors.open("w") as stderr:
        shell = subprocess.Popen(
            ["bash", "-c", f"set -eu\n{walk}\necho\necho walked"],
            cwd=ROOT, stdout=stdout, stderr=stderr, text=True,
            env={**os.environ, "no_proxy": "*"}, start_new_session=True,
        )  # fmt: skip
    try:
        code = shell.wait(120)
    finally:
        with suppress(ProcessLookupError):  # none of its processes runs
            os.killpg(shell.pid, signal.SIGTERM)
    assert code == 0, output.read_text("utf-8") + errors.read_text("utf-8")
    return output.read_text("utf-8").partition("walked\n")[0]


@pytest.fixture
def port() -> str:
    """A port that is free; the test is skipped if there is no curl.

    It is below the range from which systems choose ports for connections of other tests.
    """
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)
    pytest.fail("no port from 20000 to 30000 is free")


def view_in(text: str) -> dict[str, object]:
    view, _ = json.JSONDecoder().raw_decode(text, text.index('{"step":0,"rank":3,"world'))
    assert isinstance(view, dict)
    return view


def test_the_page_of_the_service(tmp_path: Path, port: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(block("docs/service.md", "python", "HttpSource(").replace("8400", port))
    walk = block("docs/service.md", "bash", "./run seqplan serve")
    # The page continues with another proposal, from a later checkpoint.
    going_on = block("docs/service.md", "bash", "continues")
    for written, here in (("ID2", "'$proposal'"), ('"step": 400', '"step": 2')):
        assert written in going_on
        going_on = going_on.replace(written, here)
    client = tmp_path / "client.py"
    client.write_text(block("docs/service.md", "python", "import Client").replace("8400", port))
    programs = f"{sys.executable} {program}\n{sys.executable} {client}"
    outputs = typed(f"{walk}\n{programs}\n{going_on}", port, tmp_path)
    assert '"state":"planning"' in outputs.replace(" ", "")
    assert view_in(outputs)["world_size"] == 4
    assert '{"step":0,"rank":3}' in outputs
    assert re.search(r"1 \[.*\]$", outputs, re.MULTILINE)
    assert re.search(r"^ready\n\d+\.\d+ \d+\n0 ", outputs, re.MULTILINE)
    assert '{"id":"run1b"' in outputs.replace(" ", "")


NGINX = """
daemon off;
error_log stderr;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""


def test_the_proxy_of_the_page_terminates_tls(tmp_path: Path, port: str) -> None:
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("no nginx or no openssl")
    certificate = ("-keyout", tmp_path / "plans.key", "-out", tmp_path / "plans.pem")
    name = ("-subj", "/CN=plans.example.org", "-addext", "subjectAltName=DNS:plans.example.org")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *certificate, *name],
        capture_output=True,
        check=True,
    )
    options = ("--port", 0, "--allow-host", "plans.example.org")
    with serving("--store", tmp_path / "s.db", *options) as served:
        server = block("docs/service.md", "", "proxy_pass")
        for written, here in (
            ("443", f"127.0.0.1:{port}"),
            ("http://127.0.0.1:8400", served.url),
            ("/etc/ssl", str(tmp_path)),
        ):
            assert written in server
            server = server.replace(written, here)
        settings = tmp_path / "nginx.conf"
        settings.write_text(NGINX.format(folder=tmp_path, server=server))
        nginx = subprocess.Popen(
            ["nginx", "-e", "stderr", "-p", str(tmp_path), "-c", str(settings)]
        )
        try:
            url = f"https://plans.example.org:{port}/v1/profiles"
            trusted = ("--cacert", str(tmp_path / "plans.pem"))
            resolved = ("--resolve", f"plans.example.org:{port}:127.0.0.1")
            retried = ("--retry", "20", "--retry-delay", "1", "--retry-connrefused")
            answer = subprocess.run(
                ["curl", "-sf", *trusted, *resolved, *retried, "--noproxy", "*", url],
                capture_output=True,
                check=True,
            )
        finally:
            nginx.terminate()
            nginx.wait()
        assert json.loads(answer.stdout) == served.ok("GET", "/v1/profiles")
