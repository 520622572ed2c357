"""A proposal and plans of each kind of profile, and services that have them: made once, shared."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from browser import Page, browser, missing
from command_line import call, succeeded
from planned_files import PlannedFiles
from postgresql_server import ABSENT, postgresql, programs
from service_process import serving_here
from sqlalchemy import create_engine
from stocked_service import Stocked, stock

from seqplan.api.store import schema
from seqplan.api.store.store import Store

DATA = Path(__file__).parents[2] / "examples" / "data" / "code.npy"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SEQPLAN_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 3,000 lengths of the data set that the repository carries."""
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    np.save(path, np.load(DATA)[:3000])
    return path


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory, lengths: Path) -> PlannedFiles:
    """Pipelines that run independently."""
    return _make(tmp_path_factory.mktemp("dense"), "llama-7b-a800-80gb", 4, 8000, lengths)


@pytest.fixture(scope="session")
def lockstep(tmp_path_factory: pytest.TempPathFactory, lengths: Path) -> PlannedFiles:
    """Micro-steps under ZeRO-3."""
    return _make(tmp_path_factory.mktemp("lockstep"), "gpt-7b-a100-40gb", 8, 30000, lengths)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A file in a separate folder, which must stay empty."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder / "result.json"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store, in the file ``s.db``."""
    with closing(Store(str(tmp_path / "s.db"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stocked]:
    folder = tmp_path_factory.mktemp("service")
    with serving_here(folder / "store.db") as served:
        yield stock(served)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser, for tests that run if one is installed; files share it."""
    if lacking := missing():
        pytest.skip(f"no browser: {lacking}")
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL database that tests share."""
    pytest.importorskip("psycopg", reason="no psycopg: install seqplan[postgresql]")
    if programs() is None:
        pytest.skip(ABSENT)
    with postgresql() as url:
        yield url


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """A PostgreSQL database that is empty, and is left so whatever a test does."""
    yield postgresql_server
    engine = create_engine(postgresql_server)
    schema.metadata.drop_all(engine)
    engine.dispose()


def _make(folder: Path, profile: str, gpus: int, tokens: int, lengths: Path) -> PlannedFiles:
    files = PlannedFiles(
        profile, gpus, tokens, lengths, folder / "proposal.json", folder / "plans.jsonl"
    )
    succeeded(call(*files.propose_arguments, "--schemes", "measured", "-o", files.proposal))
    succeeded(call(*files.plan_arguments, "-o", files.plans))
    return files
