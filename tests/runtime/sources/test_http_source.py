"""The source of a planning service: outages are retried, invalid responses rejected."""

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from plan_service import PlanService, serving
from small_plans import small_plans, view_of

from seqplan.runtime.errors import PlanError, PlanTimeout
from seqplan.runtime.sources.http_source import HttpSource

WORLD = 3
SOON_S = 20.0
"""Long enough for the slowest machine; nothing waits so long without errors."""


@pytest.fixture
def service() -> Iterator[PlanService]:
    with serving(PlanService(small_plans(40, WORLD), token="let me in")) as service:
        yield service


@pytest.fixture
def client(service: PlanService) -> Iterator[HttpSource]:
    source = HttpSource(service.url, "a job", "let me in", outage_s=0.3)
    yield source
    source.close()


def test_one_connection_serves_every_step(service: PlanService, client: HttpSource) -> None:
    for step in range(40):
        client.view(step, 1, SOON_S)
    assert (service.requests, service.connections) == (40, 1)


def test_passing_troubles_are_sat_out(service: PlanService, client: HttpSource) -> None:
    service.passing = ["503", "hang up", "503", "hang up"]
    assert client.view(0, 1, SOON_S) == view_of(service.plans[0], 1)
    # An idle connection that was closed: the next request opens another, at once.
    service.passing = ["hang up"]
    assert client.view(1, 1, 0.0) == view_of(service.plans[1], 1)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_statuses_that_pass_are_retried(service: PlanService, status: int) -> None:
    with closing(HttpSource(service.url, "a job", "let me in", outage_s=SOON_S)) as client:
        service.passing = [f"{status}"] * 3
        assert client.view(0, 1, SOON_S) == view_of(service.plans[0], 1)
        service.passing = [f"{status}"] * 2
        client.acknowledge(0, 1, "sha256:d")
    assert [ack["step"] for ack in service.acks] == [0]


@pytest.mark.parametrize("retry_after", ["1", formatdate(4e9, usegmt=True)])
def test_a_pause_that_the_service_requests_is_kept(
    service: PlanService, client: HttpSource, retry_after: str
) -> None:
    service.passing = ["429"] * 1000
    service.retry_after = retry_after
    with pytest.raises(PlanTimeout, match=r"no answer within 0\.9 s, at last 429 Too Many"):
        client.view(0, 1, 0.9)
    assert service.requests == 2  # the second at the deadline
    service.passing = []


def test_queued_acknowledgements_follow_when_a_plan_arrives(
    service: PlanService, tmp_path: Path
) -> None:
    """Without another one, as a service may need them to plan the next step."""
    source = HttpSource(service.url, "a job", "let me in", queue_folder=tmp_path)
    service.passing = ["503"] * 8
    source.acknowledge(0, 1, "sha256:d")
    assert not service.acks
    source.view(1, 1, SOON_S)
    assert [ack["step"] for ack in service.acks] == [0]
    source.close()


def test_truncated_response_is_retried(service: PlanService, client: HttpSource) -> None:
    service.passing = ["no body", "half a body"]
    assert client.view(0, 1, SOON_S) == view_of(service.plans[0], 1)
    assert not service.passing
    service.passing = ["half a body"] * 1000
    with pytest.raises(PlanTimeout, match=r"no answer within 0\.3 s, at last IncompleteRead"):
        client.view(1, 1, 0.3)


def test_lasting_troubles_end_in_time(service: PlanService, client: HttpSource) -> None:
    service.passing = ["503"] * 1000
    with pytest.raises(PlanTimeout, match=r"no answer within 0\.3 s, at last 503 Service Unav"):
        client.view(0, 1, 0.3)
    away = r"acknowledging step 0 of rank 1: not received for 0\.3 s, at last 503 .*; 1 are kept in"
    with pytest.raises(PlanTimeout, match=away):
        client.acknowledge(0, 1, "sha256:d")
    service.passing = ["mute"]
    with pytest.raises(PlanTimeout, match="at last TimeoutError: timed out"):
        client.view(0, 1, 0.1)
    service.stopping.set()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as socket_in_use:
        port = socket_in_use.getsockname()[1]
    source = HttpSource(f"http://127.0.0.1:{port}", "job")
    with pytest.raises(PlanTimeout, match=r"no answer within 0\.2 s, at last ConnectionRefused"):
        source.view(0, 0, 0.2)
    source.close()


def test_a_service_that_does_not_wait_is_not_polled_in_a_loop(
    service: PlanService, client: HttpSource
) -> None:
    service.ends = service.waits = False
    with pytest.raises(PlanTimeout):
        client.view(99, 0, 0.6)
    assert 2 <= service.requests <= 8


def test_answers_that_are_rejected(service: PlanService, client: HttpSource) -> None:
    def rejected(message: str, step: int = 0) -> None:
        before = service.requests
        with pytest.raises(PlanError, match=message) as caught:
            client.view(step, 1, SOON_S)
        assert type(caught.value) is PlanError
        assert "let me in" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert service.requests == before + 1

    service.etag = '"sha256:other"'
    rejected('ETag "sha256:other" is not the view\'s digest sha256:')
    service.failure = (424, {"title": "Broken"})
    rejected(r"step 99 of rank 1: Broken$", 99)
    service.failure = (410, {"type": "about:blank", "title": "The job is gone"})
    rejected("The job is gone", 99)
    service.token = "another"
    rejected("Who are you?")
    with pytest.raises(PlanError, match="acknowledging step 0 of rank 1: Who are you"):
        client.acknowledge(0, 1, None)


def test_urls_and_tokens_that_cannot_be_used() -> None:
    for url in ("ftp://host", "host:80", "http://", "http://host?x=1", "http://host:99999"):
        with pytest.raises(ValueError, match=r"^server must be http://HOST:PORT: "):
            HttpSource(url, "job")
    with pytest.raises(ValueError, match=r"^token: has characters") as caught:
        HttpSource("http://host", "job", "secret\n")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "error", "fix"),
    [
        (float("nan"), ValueError, "Give seconds from 0 to 1e+09"),
        (-1, ValueError, "Give seconds from 0 to 1e+09"),
        (float("inf"), ValueError, "Give seconds from 0 to 1e+09"),
        (None, TypeError, "Give seconds as a number"),
        (True, TypeError, "Give seconds as a number"),
    ],
)
def test_time_limits_that_cannot_be(
    client: HttpSource, seconds: Any, error: type[Exception], fix: str
) -> None:
    for call in (client.view, client.plan):
        arguments = (0, 1) if call == client.view else (0,)
        with pytest.raises(error, match=re.escape(f"timeout_s: {seconds}. {fix}")):
            call(*arguments, timeout_s=seconds)
    with pytest.raises(error, match=re.escape(f"outage_s: {seconds}. {fix}")):
        HttpSource("http://host", "job", outage_s=seconds)
