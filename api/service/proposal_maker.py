"""Queue of proposals, each made in a separate process so that requests go on."""

from __future__ import annotations

import json
import logging
import multiprocessing
import queue
import threading
from dataclasses import dataclass
from typing import Any

from seqplan.api.service.proposal_request import propose
from seqplan.api.store.errors import ArrayDamaged, ArrayMissing, StoreUnavailable
from seqplan.api.store.rows import LengthsRow, ProfileRow, ProposalRow, get
from seqplan.api.store.store import Claim, Store
from seqplan.api.store.tables.lengths import lengths_path, open_lengths
from seqplan.api.store.tables.proposals import settle_proposal
from seqplan.planner.workers.processes import planning_context, start_process

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
        """Begin making the added proposals."""
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
                    with self._store.claim(f"proposal {key}") as claim:
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
        """Return whether its thread has ended without ``stop``."""
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
        if lengths.kind == "sequences":
            try:
                open_lengths(self._store, lengths.id)
            except (ArrayMissing, ArrayDamaged) as error:
                with claim.writing() as connection:
                    settle_proposal(connection, key, error=str(error))
                return
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
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            process = start_process(propose, theirs, *arguments, context=planning_context())
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
