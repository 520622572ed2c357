"""A service without tokens rejects requests of other sites' pages; with tokens those decide."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call, succeeded
from service_process import Reply, Served, serving_here

from benchmarks.services import Client

WRITES = [
    ("POST", "/v1/lengths?format=txt", b"5\n6\n7\n"),
    ("POST", "/v1/profiles", b"{}"),
    ("POST", "/v1/jobs/none/restart", None),
    ("DELETE", "/v1/jobs/none", None),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("open")
    with serving_here(folder / "s.db", hosts=["Plans.Example"]) as here:
        yield here


def _refused(reply: Reply, kind: str) -> bool:
    return reply.status == 403 and bool(reply.json["type"].endswith(kind))


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[", "Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_foreign_page_writes_nothing(
    served: Served, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> None:
    assert _refused(served.send(method, path, body, headers), "foreign-origin")
    assert served.ok("GET", "/v1/lengths")["items"] == []


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil:8400", "[", "8.8.8.8"]
)
def test_a_name_that_was_bound_to_loopback_reads_nothing(served: Served, host: str) -> None:
    for method, path in (("GET", "/v1/jobs"), ("DELETE", "/v1/jobs/run1"), ("GET", "/metrics")):
        assert _refused(served.send(method, path, headers={"Host": host}), "foreign-host")


def test_the_clients_that_measure_it_are_served(served: Served) -> None:
    async def status() -> int:
        host, _, port = served.url.removeprefix("http://").rpartition(":")
        client = await Client.connect(host, int(port))
        answer = await client.send("GET", "/v1/jobs")
        client.close()
        return answer.status

    assert asyncio.run(status()) == 200


def test_its_page_and_programs_are_served(served: Served) -> None:
    address = served.url.removeprefix("http://")
    port = address.rpartition(":")[2]
    for host in (
        address,
        f"localhost:{port}",
        "LOCALHOST",
        f"[::1]:{port}",
        "127.0.0.2",
        "plans.example",
    ):
        assert served.send("GET", "/v1/jobs", headers={"Host": host}).status == 200
        same = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert served.send("DELETE", "/v1/jobs/none", headers=same).status == 404
    # A proxy that ends TLS and sends its name, or that of the service.
    for host in ("plans.example", address):
        proxied = {"Host": host, "Origin": "https://plans.example"}
        assert served.send("DELETE", "/v1/jobs/none", headers=proxied).status == 404
    assert served.send("DELETE", "/v1/jobs/none", headers={"Sec-Fetch-Site": "none"}).status == 404
    # Probes contain nothing of the jobs, for any client.
    assert served.send("GET", "/healthz", headers={"Host": "10.0.0.7:8400"}).status == 200


def test_with_tokens_they_decide(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    options = ("--store", store, "--add-token", "t", "--scope", "write")
    token = succeeded(call("serve", *options)).strip()
    with serving_here(store) as guarded:
        foreign = {"Host": "plans.internal", "Origin": "http://elsewhere"}
        assert guarded.send("DELETE", "/v1/jobs/none", headers=foreign).status == 401
        known = {**foreign, "Authorization": f"Bearer {token}"}
        assert guarded.send("DELETE", "/v1/jobs/none", headers=known).status == 404
