"""The proposal as a JSON document: candidates, their worth, and all that planning needs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seqplan.costs.profile import Profile
from seqplan.planner.execution import EXECUTIONS, ExecutionKind, choose_execution
from seqplan.planner.problem import PlanningProblem
from seqplan.planner.proposal.expert_rows import ExpertRow
from seqplan.planner.proposal.layouts import LayoutChoice, LayoutRow
from seqplan.planner.sync.times import (
    GivenSyncTimes,
    LayoutSyncTimes,
    SyncTimes,
    layout_text,
    layouts_of,
    parse_layout,
    sync_fields,
)
from seqplan.planner.workload import Workload
from seqplan.plans.format.canonical import canonical_json, digest_of
from seqplan.plans.format.fields import FieldReader, parse_document, read_text, shown
from seqplan.plans.scheme import Strategy

PROPOSAL_SCHEMA = 2

_FIELDS = frozenset(
    {"schema", "method", "seed", "gpus", "max_len", "tokens", "include_flagged"}
    | {"optimizer_shards", "lengths", "expected_ms", "lower_bound_ms", "judged_batches"}
    | {"candidates", "profile", "execution"}
)
_OPTIONAL = frozenset({"sync", "layouts", "micro_step_multiple", "trainer", "experts"})
_EXPERT_ROW = frozenset({"expert_parallel", "expected_ms", "sync_ms", "longest", "lower_bound_ms"})
_CANDIDATE = frozenset({"strategy", "gpus", "max_sequence", "expected_ms", "runs", "wins"})
_SYNC = frozenset({"overlap", "optimizer_ms", "source"})
_GIVEN = frozenset({"homogeneous_ms", "heterogeneous_ms"})
_BY_LAYOUT, _COLLECTIVES = frozenset({"by_layout"}), frozenset({"collectives"})
_LAYOUTS = frozenset({"chosen", "why", "rows", "static", "static_ms"})
_LAYOUT_ROW = frozenset({"tp", "pp", "sync_ms", "expected_ms"})


class ProposalError(ValueError):
    """A proposal that cannot be used; the message names the field and the reason."""


@dataclass(frozen=True)
class Candidate:
    """A proposed strategy and its worth on the evaluated batches (ms; None: it ran none of them).

    ``expected_ms`` holds the time of the proposal's sync, if any, with this strategy.
    """

    strategy: Strategy
    max_sequence: int
    expected_ms: float | None
    runs: float
    wins: float


@dataclass(frozen=True)
class Proposal:
    """A proposal with the profile it was made from: planning needs no other file.

    ``sync``: the sync with which strategies were, and in planning are, chosen; expected times and
    the bound over all strategies hold it. None: by forward and backward alone. ``layouts``: which
    layout the candidates have, and why. ``execution``: how ranks execute a step; with ``regroup``
    expected times hold the gain of regrouping. In lockstep the number of micro-steps is a multiple
    of ``micro_step_multiple``. ``trainer``: the backend that it was made for, of which the profile
    has the schemes. ``experts``: what each degree of expert parallelism costs; the profile has the
    entries of the chosen one.
    """

    method: str
    seed: int
    workload: Workload
    profile: Profile
    lengths: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    expected_ms: float
    lower_bound_ms: float
    judged: int
    sync: SyncTimes | None = None
    layouts: LayoutChoice | None = None
    execution: ExecutionKind = "regroup"
    micro_step_multiple: int = 1
    trainer: str | None = None
    experts: tuple[ExpertRow, ...] = ()

    @property
    def in_lockstep(self) -> bool:
        """Whether all ranks run in lockstep: by choice, or under ZeRO-3."""
        return self.execution == "lockstep" or self.profile.lockstep

    @property
    def problem(self) -> PlanningProblem:
        """The problem that planning solves at every step."""
        chosen = None if self.layouts is None else self.layouts.chosen
        return PlanningProblem(
            profile=self.profile,
            workload=self.workload,
            sync=self.sync,
            strategies=tuple(candidate.strategy for candidate in self.candidates),
            regroup_layout=None if chosen is None else parse_layout(chosen),
            execution=self.execution,
            micro_step_multiple=self.micro_step_multiple,
            proposal_digest=self.digest,
            uniform=self._uniform,
        )

    @property
    def _uniform(self) -> Strategy | None:
        """Return the best static strategy of the layouts' choice, if its schemes are known."""
        text = None if self.layouts is None else self.layouts.static
        return None if text is None else Strategy.parse(text)

    def to_json(self) -> str:
        """Write the document with its digest, indented for people."""
        fields = self._fields()
        fields["digest"] = digest_of(canonical_json(fields))
        return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """Return the sha256 of the canonical JSON without the digest."""
        return digest_of(canonical_json(self._fields()))

    def _fields(self) -> dict[str, Any]:
        # Left out if there is none, as in the documents of earlier versions.
        weighed: dict[str, Any] = {}
        if self.sync is not None:
            weighed["sync"] = sync_fields(self.sync)
        if self.layouts is not None:
            weighed["layouts"] = asdict(self.layouts)
        if self.micro_step_multiple > 1:
            weighed["micro_step_multiple"] = self.micro_step_multiple
        if self.trainer is not None:
            weighed["trainer"] = self.trainer
        if self.experts:
            weighed["experts"] = [asdict(row) for row in self.experts]
        return {
            **weighed,
            "schema": PROPOSAL_SCHEMA,
            "method": self.method,
            "execution": self.execution,
            "seed": self.seed,
            "gpus": self.workload.gpus,
            "max_len": self.workload.max_len,
            "tokens": self.workload.tokens,
            "include_flagged": self.workload.include_flagged,
            "optimizer_shards": self.workload.optimizer_shards,
            "lengths": dict(self.lengths),
            "expected_ms": self.expected_ms,
            "lower_bound_ms": self.lower_bound_ms,
            "judged_batches": self.judged,
            "candidates": [
                {
                    "strategy": candidate.strategy.as_list(),
                    "gpus": candidate.strategy.gpus,
                    "max_sequence": candidate.max_sequence,
                    "expected_ms": candidate.expected_ms,
                    "runs": candidate.runs,
                    "wins": candidate.wins,
                }
                for candidate in self.candidates
            ],
            "profile": dict(self.profile.document),
        }

    @classmethod
    def from_json(cls, text: str, origin: str) -> Proposal:
        """Read a document; ``ProposalError`` names missing, unknown and changed fields."""
        raw = parse_document(text, origin, "proposal", ProposalError)
        return _ProposalReader(origin).document(raw)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Proposal:
        """Read a proposal file; ``ProposalError`` when it is missing or malformed."""
        return cls.from_json(read_text(path, ProposalError), str(path))


class _ProposalReader(FieldReader):
    """Reads proposals."""

    error = ProposalError
    format = "a proposal"

    def document(self, raw: Any) -> Proposal:
        self.check_document(raw, "a proposal", _FIELDS)
        if type(raw) is not dict or "schema" not in raw:
            self.fail("", "not a proposal")
        if raw["schema"] != PROPOSAL_SCHEMA:
            self.fail(
                ".schema",
                f"is {shown(raw['schema'])}, this version reads {PROPOSAL_SCHEMA}. Propose again",
            )
        stated = raw.pop("digest", None)
        if stated != self.digest(raw):
            self.fail("", "the digest does not match; the file was changed")
        self.fields(raw, "", _FIELDS, _OPTIONAL)
        document = Proposal(
            method=self.text(raw, "method", ""),
            seed=self.integer(raw, "seed", ""),
            workload=self.workload(raw),
            profile=Profile.from_document(raw["profile"], f"{self.origin}: profile"),
            lengths=self.lengths(raw["lengths"]),
            candidates=tuple(
                self.candidate(entry, f".candidates[{number}]")
                for number, entry in enumerate(self.items(raw, "candidates", ""))
            ),
            expected_ms=self.number(raw, "expected_ms", ""),
            lower_bound_ms=self.number(raw, "lower_bound_ms", ""),
            judged=self.integer(raw, "judged_batches", ""),
            sync=self.sync(raw["sync"]) if "sync" in raw else None,
            layouts=self.layout_choice(raw["layouts"]) if "layouts" in raw else None,
            execution=self.choice(raw, "execution", "", EXECUTIONS),
            micro_step_multiple=(
                self.integer(raw, "micro_step_multiple", "", 1)
                if "micro_step_multiple" in raw
                else 1
            ),
            trainer=self.text(raw, "trainer", "") if "trainer" in raw else None,
            experts=self.expert_rows(raw) if "experts" in raw else (),
        )
        try:
            choose_execution(document.execution, document.profile, document.micro_step_multiple)
        except ValueError as error:
            self.fail("", str(error))
        self.check_candidates(document)
        return document

    def expert_rows(self, raw: dict[str, Any]) -> tuple[ExpertRow, ...]:
        rows = []
        for number, entry in enumerate(self.items(raw, "experts", "")):
            place = f".experts[{number}]"
            self.fields(entry, place, _EXPERT_ROW)
            expected_ms, sync_ms, bound_ms = (
                None if entry[name] is None else self.number(entry, name, place)
                for name in ("expected_ms", "sync_ms", "lower_bound_ms")
            )
            rows.append(
                ExpertRow(
                    self.integer(entry, "expert_parallel", place, 1),
                    expected_ms,
                    sync_ms,
                    self.integer(entry, "longest", place),
                    bound_ms,
                )
            )
        return tuple(rows)

    def digest(self, raw: dict[str, Any]) -> str:
        try:
            return digest_of(canonical_json(raw))
        except ValueError as error:
            self.fail("", str(error))

    def workload(self, raw: dict[str, Any]) -> Workload:
        try:
            return Workload(
                gpus=self.integer(raw, "gpus", "", 1),
                max_len=self.integer(raw, "max_len", "", 1),
                tokens=self.integer(raw, "tokens", "", 1),
                include_flagged=self.boolean(raw, "include_flagged", ""),
                optimizer_shards=self.integer_or_null(raw, "optimizer_shards", "", 1),
            )
        except ProposalError:
            raise
        except ValueError as error:
            self.fail("", str(error))

    def lengths(self, raw: Any) -> dict[str, Any]:
        """Read the proposal's facts of the data set: plain values by name."""
        if type(raw) is not dict:
            self.fail(".lengths", f"must be an object: {shown(raw)}")
        return dict(raw)

    def candidate(self, raw: Any, place: str) -> Candidate:
        self.fields(raw, place, _CANDIDATE)
        try:
            strategy = Strategy.from_list(self.items(raw, "strategy", place))
        except ProposalError:
            raise
        except (ValueError, TypeError) as error:
            self.fail(f"{place}.strategy", str(error))
        unknown = raw["expected_ms"] is None
        return Candidate(
            strategy,
            max_sequence=self.integer(raw, "max_sequence", place),
            expected_ms=None if unknown else self.number(raw, "expected_ms", place),
            runs=self.number(raw, "runs", place, 1.0),
            wins=self.number(raw, "wins", place, 1.0),
        )

    def sync(self, raw: Any) -> SyncTimes:
        place = ".sync"
        by_layout = type(raw) is dict and "by_layout" in raw
        optional = _COLLECTIVES & raw.keys() if by_layout else frozenset()
        self.fields(raw, place, _SYNC | (_BY_LAYOUT | optional if by_layout else _GIVEN))
        overlap, optimizer_ms = (self.number(raw, n, place) for n in ("overlap", "optimizer_ms"))
        source = self.text(raw, "source", place)
        try:
            if not by_layout:
                equal = self.number(raw, "homogeneous_ms", place)
                different = self.number(raw, "heterogeneous_ms", place)
                return GivenSyncTimes(overlap, optimizer_ms, source, equal, different)
            rows = [
                self.layout_time(entry, f"{place}.by_layout[{number}]")
                for number, entry in enumerate(self.items(raw, "by_layout", place))
            ]
            times = tuple((layout, ms) for layout, ms, _ in rows)
            alone = tuple((layout, ms) for layout, _, ms in rows if ms is not None)
            collectives = "collectives" in raw and self.boolean(raw, "collectives", place)
            return LayoutSyncTimes(overlap, optimizer_ms, source, times, alone, collectives)
        except ProposalError:
            raise
        except ValueError as error:
            self.fail(place, str(error))

    def layout_time(self, raw: Any, place: str) -> tuple[tuple[int, int], float, float | None]:
        alone = type(raw) is dict and "alone_ms" in raw
        self.fields(raw, place, frozenset({"tp", "pp", "ms", *(["alone_ms"] if alone else [])}))
        layout = self.integer(raw, "tp", place, 1), self.integer(raw, "pp", place, 1)
        alone_ms = self.number(raw, "alone_ms", place) if alone else None
        return layout, self.number(raw, "ms", place), alone_ms

    def layout_choice(self, raw: Any) -> LayoutChoice:
        place = ".layouts"
        self.fields(raw, place, _LAYOUTS)
        rows = []
        for number, entry in enumerate(self.items(raw, "rows", place)):
            row = f"{place}.rows[{number}]"
            self.fields(entry, row, _LAYOUT_ROW)
            rows.append(
                LayoutRow(
                    self.integer(entry, "tp", row, 1),
                    self.integer(entry, "pp", row, 1),
                    self.number(entry, "sync_ms", row),
                    self.number(entry, "expected_ms", row),
                )
            )
        return LayoutChoice(
            None if raw["chosen"] is None else self.text(raw, "chosen", place),
            tuple(self.text({"why": line}, "why", place) for line in self.items(raw, "why", place)),
            tuple(rows),
            None if raw["static"] is None else self.text(raw, "static", place),
            None if raw["static_ms"] is None else self.number(raw, "static_ms", place),
        )

    def check_candidates(self, document: Proposal) -> None:
        """Check that there are candidates and that the cluster can run each of them."""
        if not document.candidates:
            self.fail("", "no candidates")
        workload = document.workload
        models = workload.models(document.profile)
        if isinstance(document.sync, LayoutSyncTimes):
            timed = {layout for layout, _ in document.sync.by_layout_ms}
            if missing := sorted(layouts_of(models) - timed):
                self.fail(".sync.by_layout", f"lacks {layout_text(missing[0])}")
        for candidate in document.candidates:
            strategy = candidate.strategy
            if strategy.gpus > workload.gpus:
                self.fail("", f"candidate {strategy} takes {strategy.gpus} of {workload.gpus} GPUs")
            if foreign := [str(scheme) for scheme, _ in strategy.counts if scheme not in models]:
                self.fail("", f"scheme {foreign[0]} does not fit {workload.gpus} GPUs")
