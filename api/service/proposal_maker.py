"""Making proposals one after another, each in a process of its own so that requests go on."""

from __future__ import annotations

import json
import logging
import multiprocessing
import queue
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from seqplan.api.store.errors import StoreUnavailable
from seqplan.api.store.rows import LengthsRow, ProfileRow, ProposalRow, get
from seqplan.api.store.store import Claim, Store
from seqplan.api.store.tables.lengths import lengths_path
from seqplan.api.store.tables.proposals import settle_proposal
from seqplan.planner.cluster import Cluster
from seqplan.planner.exchange.choice import exchange_to_propose_with
from seqplan.planner.exchange.times import parse_layout
from seqplan.planner.proposal.make_proposal import METHODS, check_method, make_proposal
from seqplan.profiler.lengths import parse_histogram, representative
from seqplan.profiler.profile import Profile

_RETRY_S = 0.5

_log = logging.getLogger("seqplan.proposals")


@dataclass(frozen=True)
class MakingProgress:
    """How far a proposal is."""

    stage: str
    done: int
    total: int


class ProposalMaker:
    """A thread that makes the proposals whose ids it is given, in that order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._stopped = threading.Event()
        self._dropped: set[str] = set()
        self.progress: dict[str, MakingProgress] = {}
        self._thread = threading.Thread(target=self._run, name="proposals", daemon=True)

    def start(self) -> None:
        """Begin making what is added."""
        self._thread.start()

    def add(self, key: str) -> None:
        """Make this proposal, which the store knows as running."""
        self.progress[key] = MakingProgress("waiting", 0, 1)
        self._queue.put(key)

    def drop(self, key: str) -> None:
        """Make it no longer: the store has removed it."""
        if key in self.progress:
            self._dropped.add(key)

    def stop(self) -> None:
        """End now; a proposal underway is made again by the next service."""
        self._stopped.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (key := self._queue.get()) is not None and not self._stopped.is_set():
            while not self._ending(key):
                try:
                    with self._store.claimed(f"proposal {key}") as claim:
                        if claim is not None:  # no other service is making it
                            self._make(claim, key)
                    break
                except StoreUnavailable:
                    self._stopped.wait(_RETRY_S)
                except Exception as error:  # the next one may be made
                    _log.exception("proposal %s: making it ended", key)
                    self._give_up(key, error)
                    break
            self.progress.pop(key, None)
            self._dropped.discard(key)

    def _give_up(self, key: str, error: Exception) -> None:
        try:
            with self._store.writing() as connection:
                settle_proposal(connection, key, error=f"{type(error).__name__}: {error}")
        except Exception:
            _log.exception(
                "proposal %s: cannot be settled; it is made again at the next start", key
            )

    @property
    def ended(self) -> bool:
        """Whether its thread has ended though nobody told it to."""
        return not self._thread.is_alive() and not self._stopped.is_set()

    def _ending(self, key: str) -> bool:
        return self._stopped.is_set() or key in self._dropped

    def _make(self, claim: Claim, key: str) -> None:
        with self._store.reading() as connection:
            row = get(connection, ProposalRow, key)
            if row is None or row.state != "running":
                return  # removed, or made by another service
            request = json.loads(row.request)
            profile = get(connection, ProfileRow, request["profile"])
            lengths = get(connection, LengthsRow, request["lengths"])
        assert profile is not None
        assert lengths is not None  # they stay while a proposal is being made from them
        arguments = (
            profile.document,
            request,
            str(lengths_path(self._store, lengths.id)),
            lengths.histogram if lengths.kind == "histogram" else None,
        )
        outcome = self._in_process(key, arguments)
        if outcome is not None:
            with claim.writing() as connection:
                settle_proposal(connection, key, **outcome)

    def _in_process(self, key: str, arguments: tuple[Any, ...]) -> dict[str, str] | None:
        """Return ``document`` or ``error``; None when the service ends or it is dropped."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_propose, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        try:
            while not self._ending(key):
                if not ours.poll(0.1):
                    continue
                kind, value = ours.recv()
                if kind != "progress":
                    return {kind: value}
                self.progress[key] = MakingProgress(*value)
        except EOFError:
            return {"error": "the process that made the proposal ended without an answer"}
        finally:
            process.terminate()
            process.join()
            ours.close()
        return None


def usable_profile(profile: Profile, request: dict[str, Any]) -> Profile:
    """The profile with the schemes that a request allows; ``ProfileError`` where there is none."""
    layout = request.get("layout")
    return profile.restricted(
        measured=request.get("schemes", "all") == "measured",
        layout=None if layout is None else parse_layout(layout),
    )


def requested(profile: Profile, request: dict[str, Any]) -> dict[str, Any]:
    """Turn a request, named as options of ``seqplan propose``, into arguments of ``make_proposal``.

    ``ValueError`` as there. Requests of earlier versions, which had fewer options, may lack some.
    """
    times, method = request.get("exchange_ms"), request.get("method", METHODS[0])
    # Before the exchange was derived, it was left out unless asked for, or "published".
    propagation_only = request.get("propagation_only", times is None)
    times = None if times == "published" else times
    exchange = exchange_to_propose_with(
        profile,
        request["gpus"],
        None if times is None else (times[0], times[-1]),
        request.get("overlap", 0.0),
        propagation_only=propagation_only,
        method=method,
        spelled=("exchange_ms", "overlap", "propagation_only"),
    )
    check_method(profile, method, exchange)
    return {
        "cluster": Cluster(
            request["gpus"],
            request["max_len"],
            request["tokens"],
            request.get("include_flagged", False),
            request.get("optimizer_shards"),
        ),
        "seed": request["seed"],
        "method": method,
        "exchange": exchange,
        "static_groups": request.get("static_groups", False),
    }


def _propose(
    pipe: Connection,
    profile_json: str,
    request: dict[str, Any],
    path: str,
    histogram: str | None,
) -> None:
    try:
        profile = usable_profile(Profile.from_json(profile_json, "profile"), request)
        if histogram is None:
            lengths = np.load(path, mmap_mode="r")
        else:
            lengths = representative(parse_histogram(histogram.encode(), "histogram"))
        document = make_proposal(
            profile,
            lengths=lengths,
            progress=lambda *values: pipe.send(("progress", values)),
            **requested(profile, request),
        )
        pipe.send(("document", document.to_json()))
    except (BrokenPipeError, ConnectionError):
        return  # the service is gone
    except Exception as error:
        pipe.send(("error", str(error) or type(error).__name__))
