"""``seqplan.Client`` and ``AsyncClient`` with a real service."""

import asyncio
import errno
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, complaint, succeeded
from forwarder import forwarding, make_certificate
from service_process import serving_here
from stocked_service import DATA, WORLD, Stocked

import seqplan
from seqplan import AsyncClient, Client, ServiceError
from seqplan.api.client.operations import Operations
from seqplan.runtime.errors import PlanTimeout
from seqplan.runtime.sources import HttpSource

LENGTHS = np.load(DATA)
SETTINGS: dict[str, Any] = {"profile": "llama-7b-a800-80gb", "gpus": WORLD, "max_len": 4096}


def test_every_route_is_a_method(stocked: Stocked) -> None:
    paths = stocked.served.ok("GET", "/openapi.json")["paths"]
    ids = [operation["operationId"] for path in paths.values() for operation in path.values()]
    methods = {name for name in vars(Operations) if not name.startswith("_")}
    assert len(ids) == len(set(ids)) == len(methods)
    assert methods == set(ids)
    assert all(inspect.getdoc(getattr(Operations, name)) for name in methods)


def test_the_client_needs_neither_web_framework_nor_database() -> None:
    heavy = ("fastapi", "sqlalchemy", "torch")
    code = f"import sys, seqplan; seqplan.Client; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_job_from_upload_to_stop(stocked: Stocked) -> None:
    with Client(stocked.served.url, poll_s=0.01) as client:
        lengths = client.upload_lengths(LENGTHS)
        assert lengths.id == stocked.lengths
        assert lengths.tokens == int(LENGTHS.sum())
        begun = client.create_proposal(lengths=lengths.id, tokens=8000, **SETTINGS)
        *_, ready = client.watch(client.get_proposal, begun.id)
        assert ready.state == "ready"
        document = json.loads(client.get_proposal_document(begun.id))
        assert document == ready.document
        assert client.upload_proposal(document).state == "ready"
        job = client.create_job(id="typed", proposal=begun.id, lengths=lengths.id, steps=3).id
        plan = client.get_plan(job, 0, wait=60)
        view = client.get_view(job, 0, 1, wait=60)
        assert (view.step, view.rank, view.digest) == (0, 1, seqplan.digest(plan))
        assert str(plan.step) in client.explain_step(job, 0)
        for step in range(3):
            client.get_plan(job, step, wait=60)
            every = client.acknowledge_many(job, step=step, ranks=[1, 2, 3], digest=None)
            assert every.ranks == [1, 2, 3]
            client.acknowledge(job, step=step, rank=0, digest=None, measured_ms=7.5)
        *_, done = client.watch(client.get_progress, job)
        assert (done.state, done.slowest) == ("planned", 2)
        assert [step.step for step in client.items(client.list_steps, job, limit=1)] == [0, 1, 2]
        measured = list(client.items(client.list_measurements, job, limit=2))
        assert [(row.step, row.rank) for row in measured] == [(0, 0), (1, 0), (2, 0)]
        pushing = client.create_job(proposal=begun.id).id
        batch = {"step": np.int64(0), "ids": np.arange(2), "lengths": (np.int32(90), 70)}
        client.push_batches(pushing, batches=[batch], end=np.bool_(True))
        assert client.get_plan(pushing, 0, wait=60).lengths == (90, 70)
        assert client.plan_batch(begun.id, np.array([90, 70])).lengths == (90, 70)
        other = client.create_job(proposal=begun.id, lengths=lengths.id, steps=10**6).id
        assert client.stop_job(other).state == "stopped"
        client.delete_job(other)
        with pytest.raises(ServiceError, match=f"404: there is no job {other}") as missing:
            client.get_job(other)
        assert (missing.value.status, missing.value.kind) == (404, "not-found")


def test_both_clients_read_the_same(stocked: Stocked) -> None:
    job = stocked.job("both", steps=4, look_ahead=4)

    async def read() -> list[Any]:
        async with AsyncClient(stocked.served.url, poll_s=0.01) as client:
            plan = await client.get_plan(job, 3, wait=60)
            async for state in client.watch(client.get_job, job):
                last = state
            steps = [step.step async for step in client.items(client.list_steps, job, limit=3)]
            # Requests of one client run at the same time.
            views = await asyncio.gather(*(client.get_view(job, 3, rank) for rank in range(WORLD)))
            return [plan, last.last_planned_step, steps, views]

    with Client(stocked.served.url) as client:
        expected: list[Any] = [client.get_plan(job, 3, wait=60), 3, [0, 1, 2, 3]]
        expected.append([client.get_view(job, 3, rank) for rank in range(WORLD)])
    assert asyncio.run(read()) == expected


def test_arguments_are_those_of_the_route() -> None:
    client = Client("http://127.0.0.1:9", retry_s=0)
    assert [*inspect.signature(client.create_job).parameters] == [
        *("id", "proposal", "lengths", "tokens", "seed", "steps"),
        *("look_ahead", "continues", "refit", "slowdown", "robust"),
    ]
    with pytest.raises(ValueError, match=r"^gpus: Input should be greater than or equal to 1$"):
        client.create_proposal(profile="p", lengths="l", gpus=0, max_len=1)
    with pytest.raises(ValueError, match=r"^stepz: Extra inputs are not permitted$"):
        client.create_job(proposal="p", stepz=3)  # type: ignore[call-arg]
    for name, limit in itertools.product(("timeout_s", "retry_s", "poll_s"), (-1, float("nan"))):
        with pytest.raises(ValueError, match=rf"^{name}: {limit}\. Give seconds from 0 to 1e\+09$"):
            Client("http://127.0.0.1:9", **{name: limit})
    nothing: Any
    for nothing, message in ((None, "^lengths: None. Give a list"), ([], "there are no sequences")):
        with pytest.raises((TypeError, ValueError), match=message):
            client.upload_lengths(nothing)


def test_a_lost_response_is_requested_again_and_done_once(stocked: Stocked) -> None:
    with forwarding(stocked.served.url, lost_responses=1) as url, Client(url) as client:
        job = client.create_job(proposal=stocked.proposal, lengths=stocked.lengths, steps=1).id
        drawn_ids = [item.id for item in client.items(client.list_jobs)]
        assert drawn_ids.count(job) == 1
        before = len(drawn_ids)
    with forwarding(stocked.served.url, lost_responses=1) as url, Client(url) as client:
        client.delete_job(job)  # whose second request finds no job
        assert len(list(client.items(client.list_jobs))) == before - 1
    with (
        forwarding(stocked.served.url, lost_responses=1) as url,
        Client(url, retry_s=0) as client,
        pytest.raises(ServiceError, match="/healthz: no answer: "),
    ):
        client.get_health()


def test_a_service_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        url = served.url
    begun = time.monotonic()
    with Client(url, retry_s=0.2) as client, pytest.raises(ServiceError) as error:
        client.get_readiness()
    trouble = os.strerror(errno.ECONNREFUSED)
    assert str(error.value).startswith(f"{url}/readyz: no answer: {trouble}. Check the address")
    assert error.value.status is None
    assert time.monotonic() - begun < 60

    async def wait() -> str:
        async with AsyncClient(url) as client:
            waiting = asyncio.create_task(client.get_readiness())
            await asyncio.sleep(0.1)
            port = int(url.rpartition(":")[2])
            with serving_here(tmp_path / "s.db", port=port):
                return await waiting

    assert asyncio.run(wait()) == "ready\n"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.2.0", ("the service is seqplan 0.2.0, newer than {here} here. Install this one here: "
         "pip install 'seqplan==0.2.*'")),
        ("0.0.9", ("the service is seqplan 0.0.9, older than {here} here. Install this one here: "
         "pip install 'seqplan==0.0.*'")),
        ("?", "service version '?' cannot be read. Check the URL"),
    ],
)  # fmt: skip
def test_another_version_is_one_line(
    version: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqplan.api.rest.server.VERSION", version)
    with serving_here(tmp_path / "s.db") as served:
        wanted = f"{served.url}: {message.format(here=seqplan.__version__)}"
        with Client(served.url) as client, pytest.raises(ServiceError) as error:
            client.get_health()
        assert str(error.value) == wanted
        assert complaint(call("log", "--server", served.url)) == wanted


def test_a_patch_release_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    major, minor, _ = seqplan.__version__.split(".")
    monkeypatch.setattr("seqplan.api.rest.server.VERSION", f"{major}.{minor}.99")
    with serving_here(tmp_path / "s.db") as served, Client(served.url) as client:
        assert client.get_health() == "ok\n"


def test_another_server_is_one_line(tmp_path: Path, stocked: Stocked) -> None:
    with forwarding(stocked.served.url) as url, Client(f"{url}/below") as client:
        with pytest.raises(ServiceError, match=r"/below/healthz: 404: ") as error:
            client.get_health()
        assert error.value.status == 404


def test_a_wrong_token_is_one_line(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    token = succeeded(call("serve", "--store", store, "--add-token", "reader")).strip()
    with serving_here(store) as served:
        with Client(served.url, token) as client:
            assert client.list_jobs().items == []
            with pytest.raises(ServiceError, match=r"403: this token may only read$"):
                client.stop_job("any")
        for wrong in (None, "other"):
            with Client(served.url, wrong) as client, pytest.raises(ServiceError) as error:
                client.list_jobs()
            fix = "a valid bearer token is required. Make one with seqplan serve --add-token NAME"
            assert str(error.value) == f"{served.url}/v1/jobs: 401: {fix}"
    with pytest.raises(ValueError, match=r"^token: has characters that no header can hold"):
        Client("http://127.0.0.1", "a\nb")


def test_certificates_are_checked(tmp_path: Path, stocked: Stocked) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    certificate, context = make_certificate(tmp_path)
    with forwarding(stocked.served.url, context=context) as url:
        with Client(url, ca=certificate) as client:
            assert client.get_health() == "ok\n"
        succeeded(call("log", "--server", url, "--ca", certificate))
        with Client(url, retry_s=0) as client, pytest.raises(ServiceError) as error:
            client.get_health()
        assert str(error.value) == (
            f"{url}/healthz: no answer: self-signed certificate. "
            "Name the service's CA file (--ca, ca=)"
        )
    (tmp_path / "empty.pem").write_text("")
    for name, reason in (("none.pem", "no such file"), ("empty.pem", "no certificate in it")):
        path = tmp_path / name
        with pytest.raises(ValueError, match=r"^ca: ") as bad:
            Client("https://127.0.0.1", ca=path)
        assert str(bad.value) == f"ca: {path}: {reason}. Name a PEM file"
        shown = complaint(call("log", "--server", "https://127.0.0.1", "--ca", path))
        assert shown == f"--ca: {path}: {reason}. Name a PEM file"


def test_certificates_of_the_environment_are_trusted(
    tmp_path: Path, stocked: Stocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ranks too, which have no option for them."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    certificate, context = make_certificate(tmp_path)
    job = stocked.job("encrypted", steps=1, look_ahead=1)
    with forwarding(stocked.served.url, context=context) as url:
        source = HttpSource(url, job)
        with pytest.raises(PlanTimeout, match="certificate verify failed"):
            source.view(0, 1, timeout_s=0.2)
        source.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        source = HttpSource(url, job)
        view = source.view(0, 1, timeout_s=60)
        source.close()
        with Client(url) as client:
            assert client.get_view(job, 0, 1) == view
