"""The proposal as a JSON document: candidates, what they are worth, and all that planning needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seqplan.planner.cluster import Cluster
from seqplan.planner.exchange import Exchange
from seqplan.plans.scheme import Strategy
from seqplan.profiler.profile import Profile, ProfileError

PROPOSAL_SCHEMA = 1


class ProposalError(ValueError):
    """A proposal that cannot be used; the message says which field and why."""


@dataclass(frozen=True)
class Candidate:
    """A proposed strategy and its worth on the judged batches (ms; None: it ran none of them).

    ``expected_ms`` holds what the proposal's exchange, if any, takes with this strategy.
    """

    strategy: Strategy
    max_sequence: int
    expected_ms: float | None
    runs: float
    wins: float


@dataclass(frozen=True)
class ProposalDocument:
    """A proposal with the profile it was made from, so that planning needs no other file.

    ``exchange``: what strategies were, and in planning are, chosen with beside propagation;
    expected times and the bound over all strategies hold it. None: by propagation alone.
    """

    method: str
    seed: int
    cluster: Cluster
    profile: Profile
    lengths: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    expected_ms: float
    lower_bound_ms: float
    judged: int
    exchange: Exchange | None = None

    def to_json(self) -> str:
        """The document with its digest, indented for people."""
        fields = self._fields()
        fields["digest"] = _digest(fields)
        return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON without the digest."""
        return _digest(self._fields())

    def _fields(self) -> dict[str, Any]:
        # Left out where there is none, as in the documents of earlier versions.
        exchange = {} if self.exchange is None else {"exchange": asdict(self.exchange)}
        return {
            **exchange,
            "schema": PROPOSAL_SCHEMA,
            "method": self.method,
            "seed": self.seed,
            "gpus": self.cluster.gpus,
            "max_len": self.cluster.max_len,
            "tokens": self.cluster.tokens,
            "include_flagged": self.cluster.include_flagged,
            "optimizer_shards": self.cluster.optimizer_shards,
            "lengths": dict(self.lengths),
            "expected_ms": self.expected_ms,
            "lower_bound_ms": self.lower_bound_ms,
            "judged_batches": self.judged,
            "candidates": [
                {
                    "strategy": item.strategy.as_list(),
                    "gpus": item.strategy.gpus,
                    "max_sequence": item.max_sequence,
                    "expected_ms": item.expected_ms,
                    "runs": item.runs,
                    "wins": item.wins,
                }
                for item in self.candidates
            ],
            "profile": dict(self.profile.document),
        }

    @classmethod
    def from_json(cls, text: str, origin: str) -> ProposalDocument:
        """Read a document; ``ProposalError`` names what is missing, foreign or changed."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ProposalError(
                f"{origin}: not a whole JSON document ({error.msg} at line {error.lineno})"
            ) from None
        except (ValueError, RecursionError) as error:
            raise ProposalError(f"{origin}: not a proposal ({error})") from None
        if not isinstance(raw, dict) or raw.get("schema") != PROPOSAL_SCHEMA:
            raise ProposalError(f"{origin}: not a proposal of schema {PROPOSAL_SCHEMA}")
        stated = raw.pop("digest", None)
        if stated != _digest(raw):
            raise ProposalError(f"{origin}: the digest does not match; the file was changed")
        try:
            profile = Profile.from_document(raw["profile"], f"{origin}: profile")
            document = cls(
                method=str(raw["method"]),
                seed=int(raw["seed"]),
                cluster=Cluster(
                    raw["gpus"],
                    raw["max_len"],
                    raw["tokens"],
                    raw["include_flagged"],
                    raw["optimizer_shards"],
                ),
                profile=profile,
                lengths=dict(raw["lengths"]),
                candidates=tuple(
                    Candidate(
                        Strategy.from_list(item["strategy"]),
                        item["max_sequence"],
                        item["expected_ms"],
                        item["runs"],
                        item["wins"],
                    )
                    for item in raw["candidates"]
                ),
                expected_ms=raw["expected_ms"],
                lower_bound_ms=raw["lower_bound_ms"],
                judged=raw["judged_batches"],
                exchange=Exchange(**raw["exchange"]) if "exchange" in raw else None,
            )
        except ProfileError:
            raise
        except KeyError as error:
            raise ProposalError(f"{origin}: lacks {error}") from None
        except (ValueError, TypeError) as error:
            raise ProposalError(f"{origin}: {error}") from None
        if not document.candidates:
            raise ProposalError(f"{origin}: no candidates")
        models = document.cluster.models(profile)
        for candidate in document.candidates:
            if candidate.strategy.gpus > document.cluster.gpus:
                raise ProposalError(
                    f"{origin}: candidate {candidate.strategy} takes {candidate.strategy.gpus} of "
                    f"{document.cluster.gpus} GPUs"
                )
            if foreign := [str(s) for s, _ in candidate.strategy.counts if s not in models]:
                raise ProposalError(
                    f"{origin}: scheme {foreign[0]} does not fit {document.cluster.gpus} GPUs"
                )
        return document

    @classmethod
    def load(cls, path: Path) -> ProposalDocument:
        """Read a proposal file; ``ProposalError`` when it is missing or malformed."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ProposalError(f"{path}: cannot be read: {reason}") from None
        return cls.from_json(text, str(path))


def _digest(fields: Mapping[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode(errors="surrogatepass")).hexdigest()
