"""The fields of a plan out of parsed JSON, each checked by name, type and range."""

from __future__ import annotations

from typing import Any, ClassVar

from seqplan.plans.format.fields import FieldReader, shown
from seqplan.plans.load import PhaseLoad
from seqplan.plans.plan import SCHEMA, Considered, MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.recomputation import MODES, join_mode, split_mode
from seqplan.plans.scheme import Scheme, Strategy


class PlanError(ValueError):
    """A text is not a plan: one line with the origin, the field and the error."""


_PLAN = frozenset(
    {"schema", "step", "digest", "provenance", "world_size", "sequences", "tokens", "loss_tokens"}
    | {"pipelines", "idle_ranks", "groups", "predicted_ms", "lower_bound_ms", "gap", "selection"}
)
_PROVENANCE = frozenset({"version", "seed", "profile", "proposal"})
_ROBUST = frozenset({"robust"})
_SEQUENCES = frozenset({"ids", "lengths"})
_LOADS = frozenset({"loads"})
_LOAD = frozenset({"name", "tokens", "work_ms", "overhead_ms"})
_CAPACITY = frozenset({"capacity"})
_PIPELINE = frozenset({"scheme", "ranks", "micro_batches", "predicted_ms"})
_OF_SOME = frozenset({"micro_step", "slowdown"})
_SYNC = frozenset({"sync_ms"})
_LAYOUT = frozenset({"layout_lower_bound_ms", "layout_gap"})
_EXPERTS = frozenset({"expert_parallel"})
_SHAPES = frozenset({"shapes"})
_LOST = frozenset({"lost_ranks"})
_MICRO_BATCH = frozenset({"sequences", "tokens", "padded_tokens", "cost_ms"})
_RECOMPUTE = frozenset({"recompute", "offload_layers"})
_SHARED = frozenset({"shared_ms"})
_CONSIDERED = frozenset({"strategy", "lower_bound_ms", "predicted_ms"})
_SCHEME = frozenset({"tp", "pp", "ulysses", "ring"})
_COUNTED = _SCHEME | {"count"}


class PlanReader(FieldReader):
    """Reads plans, and what rank views share with them."""

    error: ClassVar[type[ValueError]] = PlanError
    format = "the plan format"

    def __init__(self, origin: str, strict: bool) -> None:
        super().__init__(origin, strict)
        self.schemes: dict[tuple[int, ...], Scheme] = {}

    def plan(self, raw: Any) -> Plan:
        self.check_document(raw, "a plan", _PLAN)
        if isinstance(raw, dict) and "schema" in raw and raw["schema"] != SCHEMA:
            # Checked first: under another schema every other message would mislead.
            self.fail(
                "schema",
                f"is {shown(raw['schema'])}, this version reads {SCHEMA}. Plan the steps again",
            )
        self.fields(raw, "", _PLAN, _SYNC | _LAYOUT | _EXPERTS | _SHAPES | _LOST)
        self.integer(raw, "schema", "", 1)
        self.text(raw, "digest", "")
        maker = raw["provenance"]
        self.fields(maker, ".provenance", _PROVENANCE, _ROBUST)
        sequences = raw["sequences"]
        self.fields(sequences, ".sequences", _SEQUENCES, _LOADS)
        ids = self.integers(sequences, "ids", ".sequences")
        lengths = self.integers(sequences, "lengths", ".sequences", 1)
        if len(ids) != len(lengths):
            self.fail(".sequences", f"{len(ids)} ids but {len(lengths)} lengths")
        groups = tuple(
            self.integer_list(group, f".groups[{number}]")
            for number, group in enumerate(self.items(raw, "groups", ""))
        )
        plan = Plan(
            step=self.integer(raw, "step", ""),
            provenance=Provenance(
                version=self.text(maker, "version", ".provenance"),
                seed=self.integer(maker, "seed", ".provenance"),
                profile=self.text(maker, "profile", ".provenance"),
                proposal=(
                    None
                    if maker["proposal"] is None
                    else self.text(maker, "proposal", ".provenance")
                ),
                robust=self.robust(maker),
            ),
            world_size=self.integer(raw, "world_size", "", 1),
            ids=ids,
            lengths=lengths,
            tokens=self.integer(raw, "tokens", ""),
            loss_tokens=self.integer(raw, "loss_tokens", ""),
            pipelines=tuple(
                self.pipeline(entry, f".pipelines[{number}]")
                for number, entry in enumerate(self.items(raw, "pipelines", ""))
            ),
            idle_ranks=self.integers(raw, "idle_ranks", ""),
            groups=groups,
            predicted_ms=self.number(raw, "predicted_ms", ""),
            lower_bound_ms=self.number(raw, "lower_bound_ms", ""),
            gap=self.number(raw, "gap", ""),
            selection=tuple(
                self.read_candidate(entry, f".selection[{number}]")
                for number, entry in enumerate(self.items(raw, "selection", ""))
            ),
            sync_ms=self.sync_ms(raw, ""),
            layout_lower_bound_ms=(
                self.number(raw, "layout_lower_bound_ms", "")
                if "layout_lower_bound_ms" in raw
                else None
            ),
            expert_parallel=self.expert_parallel(raw),
            loads=self.loads(sequences, len(lengths), ".sequences"),
            shapes=self.optional_integers(raw, "shapes", 1),
            lost_ranks=self.optional_integers(raw, "lost_ranks"),
        )
        if (stated := raw.get("layout_gap")) != plan.layout_gap:
            self.fail("layout_gap", f"is {shown(stated)}, its bound gives {plan.layout_gap}")
        return plan

    def loads(
        self, sequences: dict[str, Any], number: int, place: str = ""
    ) -> tuple[PhaseLoad, ...]:
        """Return the loads of so many sequences; none if they are not stated."""
        if "loads" not in sequences:
            return ()
        entries = self.items(sequences, "loads", place)
        if not entries:
            self.fail(f"{place}.loads", "is empty. Leave it out")
        return tuple(
            self.load(entry, f"{place}.loads[{index}]", number)
            for index, entry in enumerate(entries)
        )

    def load(self, raw: Any, place: str, number: int) -> PhaseLoad:
        self.fields(raw, place, _LOAD, _CAPACITY)
        tokens = self.integers(raw, "tokens", place)
        work_ms = self.items(raw, "work_ms", place)
        for name, values in (("tokens", tokens), ("work_ms", work_ms)):
            if len(values) != number:
                self.fail(f"{place}.{name}", f"has {len(values)} values for {number} sequences")
        name, overhead_ms = self.text(raw, "name", place), self.number(raw, "overhead_ms", place)
        of_each = tuple(self.numbers(work_ms, f"{place}.work_ms"))
        capacity = self.integer(raw, "capacity", place, 1) if "capacity" in raw else None
        try:
            return PhaseLoad(name, tokens, of_each, overhead_ms, capacity)
        except ValueError as error:
            self.fail(place, str(error))

    def expert_parallel(self, raw: dict[str, Any]) -> int:
        """Return the degree by which experts are split; 1 if it is not stated."""
        if "expert_parallel" not in raw:
            return 1
        degree = self.integer(raw, "expert_parallel", "", 1)
        if degree == 1:
            self.fail("expert_parallel", "is 1. Leave it out")
        return degree

    def robust(self, maker: dict[str, Any]) -> float:
        """Return the share by which costs may be off; 0 if it is not stated."""
        if "robust" not in maker:
            return 0.0
        share = self.number(maker, "robust", ".provenance")
        if not 0 < share < 1:
            self.fail(".provenance.robust", f"is {share:g}. Give a share between 0 and 1")
        return share

    def pipeline(self, raw: Any, place: str) -> PlannedPipeline:
        self.fields(raw, place, _PIPELINE, _OF_SOME)
        return PlannedPipeline(
            scheme=self.scheme(raw["scheme"], f"{place}.scheme", _SCHEME),
            ranks=self.integers(raw, "ranks", place),
            micro_batches=tuple(
                self.micro_batch(entry, f"{place}.micro_batches[{number}]")
                for number, entry in enumerate(self.items(raw, "micro_batches", place))
            ),
            predicted_ms=self.number(raw, "predicted_ms", place),
            micro_step=self.integer(raw, "micro_step", place) if "micro_step" in raw else None,
            slowdown=self.slowdown(raw, place),
        )

    def optional_integers(self, raw: dict[str, Any], name: str, least: int = 0) -> tuple[int, ...]:
        """Read a list of the plan that is absent if it would be empty."""
        values = self.integers(raw, name, "", least) if name in raw else ()
        if name in raw and not values:
            self.fail(f".{name}", "is empty. Leave it out")
        return values

    def slowdown(self, raw: dict[str, Any], place: str) -> float:
        """Return a pipeline's factor; 1 if it is not stated."""
        factor = self.number(raw, "slowdown", place) if "slowdown" in raw else 1.0
        if factor < 1:
            self.fail(f"{place}.slowdown", f"is {factor}. Give a factor above 1, or leave it out")
        return factor

    def micro_batch(self, raw: Any, place: str) -> MicroBatch:
        self.fields(raw, place, _MICRO_BATCH, _RECOMPUTE | _SHARED)
        return MicroBatch(
            sequences=self.integers(raw, "sequences", place),
            tokens=self.integer(raw, "tokens", place),
            padded_tokens=self.integer(raw, "padded_tokens", place),
            cost_ms=self.number(raw, "cost_ms", place),
            recompute=self.recompute(raw, place),
            shared_ms=self.number(raw, "shared_ms", place) if "shared_ms" in raw else 0.0,
        )

    def recompute(self, raw: dict[str, Any], place: str) -> str | None:
        """Return a micro-batch's recomputation mode; None if it has none."""
        if "recompute" not in raw:
            if "offload_layers" in raw:
                self.fail(f"{place}.offload_layers", "is of a mode. State recompute")
            return None
        if (name := raw["recompute"]) not in MODES:
            self.fail(f"{place}.recompute", f"must be one of {', '.join(MODES)}: {shown(name)}")
        share = self.number(raw, "offload_layers", place) if "offload_layers" in raw else 0.0
        mode = join_mode(name, share)
        if "offload_layers" in raw and (not 0 < share <= 1 or split_mode(mode)[1] != share):
            self.fail(
                f"{place}.offload_layers",
                f"must be a share above 0, up to 1, of at most six digits: {share!r}",
            )
        return mode

    def sync_ms(self, raw: dict[str, Any], place: str) -> float | None:
        return self.number(raw, "sync_ms", place) if "sync_ms" in raw else None

    def read_candidate(self, raw: Any, place: str) -> Considered:
        self.fields(raw, place, _CONSIDERED, _SYNC)
        counts = []
        for number, entry in enumerate(self.items(raw, "strategy", place)):
            scheme_place = f"{place}.strategy[{number}]"
            scheme = self.scheme(entry, scheme_place, _COUNTED)
            counts.append((scheme, self.integer(entry, "count", scheme_place, 1)))
        try:
            strategy = Strategy(tuple(counts))
        except ValueError as error:
            self.fail(f"{place}.strategy", str(error))
        return Considered(
            strategy=strategy,
            lower_bound_ms=self.number(raw, "lower_bound_ms", place),
            predicted_ms=(
                None if raw["predicted_ms"] is None else self.number(raw, "predicted_ms", place)
            ),
            sync_ms=self.sync_ms(raw, place),
        )

    def scheme(self, raw: Any, place: str, names: frozenset[str]) -> Scheme:
        self.fields(raw, place, names)
        degrees = (
            self.integer(raw, "tp", place, 1),
            self.integer(raw, "pp", place, 1),
            self.integer(raw, "ulysses", place, 1),
            self.integer(raw, "ring", place, 1),
        )
        # One object per distinct scheme: plans repeat few schemes many times.
        if degrees not in self.schemes:
            self.schemes[degrees] = Scheme(*degrees)
        return self.schemes[degrees]
