"""A planning service that is away for a while: training goes on, no acknowledgement is lost."""

import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from consuming import HERE_S, consume
from ranks import run_ranks, run_ranks_expecting_failure
from service_process import Served, serving, serving_here
from stocked_service import WORLD, stock

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.sources import acknowledgements
from seqplan.runtime.sources.http_source import HttpSource

STEPS, KILLED_AFTER, AWAY_UNTIL = 9, 2, 6


class NotingSource(HttpSource):
    """Notes the last step that was fetched."""

    fetched = -1

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        view = super().view(step, rank, timeout_s)
        self.fetched = step
        return view


def wait_for(happened: Path) -> None:
    ends = time.monotonic() + 6 * HERE_S  # ranks start one after another on a busy machine
    while not happened.exists():
        assert time.monotonic() < ends, happened
        time.sleep(0.01)


def step_number(view: RankView) -> int:
    return view.step


def train(rank: int, world_size: int, url: str, folder: Path, outage_s: float = 420.0) -> list[int]:
    """Run all steps; the service is killed after one, and is back when some more are done."""
    source = NotingSource(url, "job", outage_s=outage_s, queue_folder=folder / "queue")
    ran = []
    with consume(source, rank, world_size, prepare=step_number, prefetch=1) as steps:
        for step in steps:
            ran.append(step.prepared)
            if step.prepared == KILLED_AFTER:
                while source.fetched < AWAY_UNTIL:
                    time.sleep(0.01)
            steps.acknowledge(step.prepared)
            if step.prepared == KILLED_AFTER:
                (folder / f"ready-{rank}").touch()
                wait_for(folder / "killed")
            if step.prepared == AWAY_UNTIL:
                (folder / f"trained-{rank}").touch()
    return ran


def kill(served: Served, folder: Path, world_size: int) -> None:
    for rank in range(world_size):
        wait_for(folder / f"ready-{rank}")
    served.process.kill()  # type: ignore[attr-defined]
    served.process.wait()  # type: ignore[attr-defined]
    (folder / "killed").touch()


def test_training_goes_on_while_the_service_is_away(tmp_path: Path) -> None:
    """Steps run without it, and their acknowledgements arrive later, each once."""
    store = ("--store", tmp_path / "s.db")
    with ThreadPoolExecutor(1) as pool:
        with serving(*store, "--port", 0) as served:
            stock(served).job("job", STEPS, look_ahead=STEPS)
            ranks = pool.submit(run_ranks, train, WORLD, served.url, tmp_path)
            kill(served, tmp_path, WORLD)
        for rank in range(WORLD):
            wait_for(tmp_path / f"trained-{rank}")
        assert len(list((tmp_path / "queue").glob("*.jsonl"))) == WORLD
        with serving(*store, "--port", served.url.rpartition(":")[2]) as served:
            assert ranks.result() == [[*range(STEPS)]] * WORLD
            assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [STEPS - 1] * WORLD
    assert not list((tmp_path / "queue").glob("*.jsonl"))


def end_while_away(rank: int, world_size: int, url: str, folder: Path) -> None:
    """Acknowledge two steps to nobody, then die."""
    source = HttpSource(url, "job", queue_folder=folder / "queue")
    digests = [source.view(step, rank, HERE_S).digest for step in range(2)]
    (folder / f"ready-{rank}").touch()
    wait_for(folder / "killed")
    for step in range(2):
        source.acknowledge(step, rank, digests[step])
    (folder / f"trained-{rank}").touch()
    os._exit(9)


def start_again(rank: int, world_size: int, url: str, folder: Path) -> None:
    """Fetch a view, as a trainer does that starts from its checkpoint."""
    source = HttpSource(url, "job", queue_folder=folder / "queue")
    source.view(2, rank, HERE_S)
    source.close()


def test_acknowledgements_outlive_the_trainer(tmp_path: Path) -> None:
    store = ("--store", tmp_path / "s.db")
    with ThreadPoolExecutor(1) as pool:
        with serving(*store, "--port", 0) as served:
            stock(served).job("job", STEPS, look_ahead=STEPS)
            everyone = frozenset(range(WORLD))
            ranks = pool.submit(
                run_ranks, end_while_away, WORLD, served.url, tmp_path, dying=everyone
            )
            kill(served, tmp_path, WORLD)
        ranks.result()
    files = list((tmp_path / "queue").glob("*.jsonl"))
    assert len(files) == WORLD
    with files[0].open("ab") as file:
        file.write(b'{"path": "/v1/jo')  # cut by the end of its process
    port = served.url.rpartition(":")[2]
    with serving(*store, "--port", port) as served:
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [-1] * WORLD
        run_ranks(start_again, WORLD, served.url, tmp_path)
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"] == [1] * WORLD
    assert not list((tmp_path / "queue").glob("*.jsonl"))


def train_without_warnings(rank: int, world_size: int, url: str, folder: Path) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(rank, world_size, url, folder, outage_s=0.2)


def test_an_outage_beyond_the_limit_is_one_line_on_every_rank(tmp_path: Path) -> None:
    store = ("--store", tmp_path / "s.db")
    with ThreadPoolExecutor(1) as pool, serving(*store, "--port", 0) as served:
        stock(served).job("job", STEPS, look_ahead=STEPS)
        ranks = pool.submit(
            run_ranks_expecting_failure, train_without_warnings, WORLD, served.url, tmp_path
        )
        kill(served, tmp_path, WORLD)
        for text in ranks.result():
            assert text.startswith("PlanError: rank 0: ")
            assert "not received for 0.2 s, at last ConnectionRefusedError" in text
            assert "are kept in" in text
            assert "\n" not in text


@pytest.mark.filterwarnings("ignore:.*acknowledgements are not received:UserWarning")
def test_acknowledgements_of_an_earlier_job_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job of the same name would else count steps as done that nobody has run."""
    monkeypatch.setattr(acknowledgements, "FIRST_TRY_S", 0.01)
    last, store = 8, tmp_path / "s.db"
    with serving_here(store) as served:
        port = int(served.url.rpartition(":")[2])
        stock(served).job("job", last, look_ahead=last)
        source = HttpSource(served.url, "job", queue_folder=tmp_path, outage_s=60)
        views = [source.view(step, 0, 60) for step in range(last)]
    for view in views:
        source.acknowledge(view.step, 0, view.digest, 1.0)
    source.close()
    with serving_here(tmp_path / "new.db", port=port) as served:
        stock(served).job("job", last, look_ahead=last)
        assert served.send("GET", f"/v1/jobs/job/plans/{last - 1}?wait=60").status == 200
        following = HttpSource(served.url, "job", queue_folder=tmp_path, outage_s=10)
        with pytest.warns(
            UserWarning, match=rf"dropped, {last} queued by a process that ended: .*"
        ):
            first = following.view(0, 0, 60)
        following.view(1, 0, 60)
        following.acknowledge(0, 0, first.digest)
        following.close()
        assert served.ok("GET", "/v1/jobs/job")["acknowledged"][0] == 0
