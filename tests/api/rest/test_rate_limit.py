"""At most so many requests a second of one token."""

from collections.abc import Callable
from pathlib import Path

from service_process import Reply, serving, serving_here
from stocked_service import WORLD, stock

from seqplan.api.client.client import Client
from seqplan.api.service.service import Limits
from seqplan.api.store.store import Store
from seqplan.api.store.tables.tokens import add_token
from seqplan.runtime.sources.http_source import HttpSource

RATE = 2


def _send_until_rejected(send: Callable[[], Reply]) -> tuple[int, Reply]:
    """Send a request again until there are too many: how many there were, and the rejection."""
    for sent in range(200):  # on a busy machine some of them are a second apart
        if (reply := send()).status == 429:
            return sent, reply
    raise AssertionError("not rejected")


def test_a_token_beyond_its_rate_waits_and_others_do_not(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s.db"))
    with store.writing() as connection:
        tokens = [add_token(connection, name, "write") for name in ("much", "little")]
    store.close()
    limits = Limits(requests_a_second=RATE)
    with serving_here(tmp_path / "s.db", limits=limits) as served:
        much, little = ({"Authorization": f"Bearer {token}"} for token in tokens)
        before, rejected = _send_until_rejected(
            lambda: served.send("GET", "/v1/jobs", headers=much)
        )
        assert before >= RATE
        assert rejected.headers["retry-after"] == "1"
        assert rejected.headers["content-type"] == "application/problem+json"
        assert rejected.json["type"] == "urn:seqplan:problem:too-many-requests"
        assert rejected.json["detail"].startswith(f"token much has sent more than {RATE} requests")
        ack = {"step": 0, "rank": 0, "digest": None}
        _send_until_rejected(lambda: served.send("POST", "/v1/jobs/j/acks", ack, headers=much))
        assert served.send("GET", "/v1/jobs", headers=little).status == 200
        assert {served.send("GET", "/healthz", headers=much).status for _ in range(9)} == {200}
        with Client(served.url, tokens[0]) as client:
            for _ in range(2 * RATE + 2):  # more than two seconds' worth: it waits and succeeds
                assert client.list_jobs().items == []
        assert "429" in served.send("GET", "/metrics", headers=little).body.decode()


def test_ranks_wait_for_the_next_second(tmp_path: Path) -> None:
    with serving("--store", tmp_path / "s.db", "--port", 0, "--rate-limit", 5) as served:
        job = stock(served).job("job", steps=2)
        source = HttpSource(served.url, job)
        for step in range(2):
            for rank in range(WORLD):
                source.acknowledge(step, rank, source.view(step, rank, 60).digest)
        source.close()
        with Client(served.url) as client:
            assert client.get_job(job).acknowledged == [1] * WORLD
