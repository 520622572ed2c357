"""A rank view out of parsed JSON, the inverse of ``RankView.to_dict``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from seqplan.plans.experts import ExpertSteps
from seqplan.plans.format.decode import PlanReader
from seqplan.plans.format.fields import shown
from seqplan.plans.groups import Coordinates, Group
from seqplan.plans.views.micro_batch_view import MicroBatchView, SequenceShare
from seqplan.plans.views.placement import PlacedPipeline, Placement, ranks_of_runs
from seqplan.plans.views.rank_view import PipelineView, RankView
from seqplan.plans.views.sharding import Range

_VIEW = frozenset(
    {"step", "rank", "world_size", "tokens", "loss_tokens", "micro_steps", "digest"}
    | {"placement", "pipelines"}
)
_OPTIONAL = frozenset({"experts", "lost_ranks"})
_EXPERT_STEPS = frozenset({"expert_parallel", "micro_steps", "total", "world"})
_PLACED = frozenset({"scheme", "ranks"})

MAX_PLACED = 1 << 20
"""Ranks of one entry of a placement, at most: a few bytes could name any number of them."""

_PIPELINE = frozenset(
    {"index", "scheme", "micro_step", "predicted_ms", "at", "groups", "neighbors", "micro_batches"}
)
_AXES = frozenset({"tp", "pp", "ulysses", "ring"})
_GROUPS = _AXES | {"sp"}
_NEIGHBORS = frozenset({"ring_previous", "ring_next", "pp_previous", "pp_next"})
_MICRO_BATCH = frozenset(
    {"sequences", "tokens", "local_tokens", "padded_local_tokens", "cost_ms"}
    | {"cu_seqlens", "padded_cu_seqlens", "ring_cu_seqlens"}
)
_RECOMPUTE = frozenset({"recompute", "offload_layers"})
_LOADS = frozenset({"loads"})
_SEQUENCE = frozenset({"position", "id", "length", "ranges"})


def decode_view(document: Any, *, strict: bool = True, origin: str = "view") -> RankView:
    """Read the view written in ``document``, JSON values as ``RankView.to_dict`` gives them.

    Checks field names, types, ranges of integers, and that token counts, offsets and groups fit
    together. ``strict`` rejects unknown fields, otherwise they are ignored. Raises ``PlanError``
    of one line that begins with ``origin`` and names the field.
    """
    return _ViewReader(origin, strict).view(document)


class _ViewReader(PlanReader):
    def view(self, raw: Any) -> RankView:
        self.fields(raw, "", _VIEW, _OPTIONAL)
        world_size = self.integer(raw, "world_size", "", 1)
        rank = self.integer(raw, "rank", "")
        if rank >= world_size:
            self.fail(".rank", f"{rank} is outside 0 … {world_size - 1}")
        lost = self.integers(raw, "lost_ranks", "") if "lost_ranks" in raw else ()
        if any(later <= before for before, later in pairwise((-1, *lost, world_size))):
            self.fail(".lost_ranks", f"must ascend within 0 … {world_size - 1}")
        placement = self.placement(raw, world_size)
        if running := sorted({*lost} & {rank for placed in placement for rank in placed.ranks}):
            self.fail(".lost_ranks", f"rank {running[0]} runs a pipeline")
        pipelines = tuple(
            self.pipeline_view(entry, f".pipelines[{number}]", rank, world_size)
            for number, entry in enumerate(self.items(raw, "pipelines", ""))
        )
        run_here = [index for index, placed in enumerate(placement) if rank in placed.ranks]
        if [pipeline.index for pipeline in pipelines] != run_here:
            self.fail(".pipelines", f"are not those that the placement gives rank {rank}")
        for pipeline in pipelines:
            if placement[pipeline.index].scheme != pipeline.scheme:
                self.fail(f".placement[{pipeline.index}].scheme", f"is not {pipeline.scheme}")
        return RankView(
            step=self.integer(raw, "step", ""),
            rank=rank,
            world_size=world_size,
            tokens=self.integer(raw, "tokens", ""),
            loss_tokens=self.integer(raw, "loss_tokens", ""),
            micro_steps=self.integer_or_null(raw, "micro_steps", ""),
            digest=None if raw["digest"] is None else self.text(raw, "digest", ""),
            placement=placement,
            pipelines=pipelines,
            lost_ranks=lost,
            **self.experts(raw, world_size, sum(len(view.micro_batches) for view in pipelines)),
        )

    def experts(self, raw: dict[str, Any], world_size: int, count: int) -> dict[str, Any]:
        """Read the micro-steps with experts of a rank with ``count`` micro-batches, if stated."""
        if "experts" not in raw:
            return {}
        stated, place = raw["experts"], ".experts"
        self.fields(stated, place, _EXPERT_STEPS)
        degree = self.integer(stated, "expert_parallel", place, 2)
        if world_size % degree:
            self.fail(f"{place}.expert_parallel", f"{degree} does not divide {world_size} ranks")
        numbers = self.integers(stated, "micro_steps", place)
        total, world = (self.integer(stated, name, place) for name in ("total", "world"))
        if len(numbers) != count:
            self.fail(
                f"{place}.micro_steps", f"has {len(numbers)} micro-steps for {count} micro-batches"
            )
        if any(later <= earlier for earlier, later in pairwise((-1, *numbers, total))):
            self.fail(f"{place}.micro_steps", f"must ascend below {total}")
        if world < total:
            self.fail(f"{place}.world", f"is {world}, below the total {total}")
        return {"expert_parallel": degree, "experts": ExpertSteps(numbers, total, world)}

    def placement(self, raw: Any, world_size: int) -> Placement:
        placed = []
        for number, entry in enumerate(self.items(raw, "placement", "")):
            place = f".placement[{number}]"
            self.fields(entry, place, _PLACED)
            scheme = self.scheme(entry["scheme"], f"{place}.scheme", _AXES)
            runs = [
                self.integer_list(run, f"{place}.ranks[{at}]")
                for at, run in enumerate(self.items(entry, "ranks", place))
            ]
            for at, run in enumerate(runs):
                if len(run) != 2 or not run[0] < run[1] <= world_size:
                    self.fail(f"{place}.ranks[{at}]", f"must be [first, stop] up to {world_size}")
            if sum(stop - first for first, stop in runs) > MAX_PLACED:
                self.fail(f"{place}.ranks", f"are more than {MAX_PLACED:,}")
            ranks, size = ranks_of_runs(runs), scheme.gpus
            pipelines = [ranks[at : at + size] for at in range(0, len(ranks), size)]
            if not ranks or any(len(set(pipeline)) != size for pipeline in pipelines):
                self.fail(f"{place}.ranks", f"must be {size} distinct ranks for each {scheme}")
            placed += [PlacedPipeline(scheme, pipeline) for pipeline in pipelines]
        return tuple(placed)

    def pipeline_view(self, raw: Any, place: str, rank: int, world_size: int) -> PipelineView:
        self.fields(raw, place, _PIPELINE)
        scheme = self.scheme(raw["scheme"], f"{place}.scheme", _AXES)
        degrees = {**scheme.as_dict(), "sp": scheme.sp}
        at = self.coordinates(raw["at"], f"{place}.at", degrees)
        index_on = {
            "tp": at.tp,
            "pp": at.pp,
            "ulysses": at.ulysses,
            "ring": at.ring,
            "sp": at.ring * scheme.ulysses + at.ulysses,
        }
        self.fields(raw["groups"], f"{place}.groups", _GROUPS)
        groups: dict[str, Group] = {}
        for name, degree in degrees.items():
            group_place = f"{place}.groups.{name}"
            group = groups[name] = self.integers(raw["groups"], name, f"{place}.groups")
            if len(group) != degree:
                self.fail(group_place, f"has {len(group)} ranks, {scheme} must have {degree}")
            if len(set(group)) != degree or max(group) >= world_size:
                self.fail(group_place, f"must be distinct ranks below world_size {world_size}")
            if group[index_on[name]] != rank:
                self.fail(group_place, f"has rank {group[index_on[name]]} where rank {rank} stands")
        neighbors = raw["neighbors"]
        self.fields(neighbors, f"{place}.neighbors", _NEIGHBORS)
        expected = _neighbors(groups["ring"], at.ring, groups["pp"], at.pp)
        for name, neighbor in expected.items():
            stated = self.integer_or_null(neighbors, name, f"{place}.neighbors")
            if stated != neighbor:
                self.fail(f"{place}.neighbors.{name}", f"is {stated}, the groups give {neighbor}")
        return PipelineView(
            index=self.integer(raw, "index", place),
            scheme=scheme,
            micro_step=self.integer_or_null(raw, "micro_step", place),
            predicted_ms=self.number(raw, "predicted_ms", place),
            at=at,
            tp_group=groups["tp"],
            ulysses_group=groups["ulysses"],
            ring_group=groups["ring"],
            sp_group=groups["sp"],
            pp_group=groups["pp"],
            **expected,
            micro_batches=tuple(
                self.micro_batch_view(entry, f"{place}.micro_batches[{number}]")
                for number, entry in enumerate(self.items(raw, "micro_batches", place))
            ),
        )

    def coordinates(self, raw: Any, place: str, degrees: dict[str, int]) -> Coordinates:
        self.fields(raw, place, _AXES)
        indexes = {name: self.integer(raw, name, place) for name in sorted(_AXES)}
        for name, index in indexes.items():
            if index >= degrees[name]:
                self.fail(f"{place}.{name}", f"{index} is outside 0 … {degrees[name] - 1}")
        return Coordinates(**indexes)

    def micro_batch_view(self, raw: Any, place: str) -> MicroBatchView:
        self.fields(raw, place, _MICRO_BATCH, _RECOMPUTE | _LOADS)
        sequences = tuple(
            self.share(entry, f"{place}.sequences[{number}]")
            for number, entry in enumerate(self.items(raw, "sequences", place))
        )
        lengths = tuple(share.length for share in sequences)
        if self.lengths(raw, "cu_seqlens", place, len(lengths)) != lengths:
            self.fail(f"{place}.cu_seqlens", "is not the offsets of the sequences' lengths")
        padded = self.lengths(raw, "padded_cu_seqlens", place, len(lengths))
        if any(wide < length for wide, length in zip(padded, lengths, strict=True)):
            self.fail(f"{place}.padded_cu_seqlens", "has less room than a sequence has tokens")
        ring = self.lengths(raw, "ring_cu_seqlens", place, len(lengths))
        held = sum(stop - start for share in sequences for start, stop in share.ranges)
        for name, expected in (("tokens", sum(lengths)), ("local_tokens", held)):
            if self.integer(raw, name, place) != expected:
                self.fail(f"{place}.{name}", f"is {raw[name]}, the sequences give {expected}")
        return MicroBatchView(
            sequences=sequences,
            tokens=sum(lengths),
            padded_lengths=padded,
            ring_lengths=ring,
            local_tokens=held,
            padded_local_tokens=self.integer(raw, "padded_local_tokens", place, held),
            cost_ms=self.number(raw, "cost_ms", place),
            recompute=self.recompute(raw, place),
            loads=self.micro_batch_loads(raw, place, len(lengths)),
        )

    def micro_batch_loads(
        self, raw: dict[str, Any], place: str, number: int
    ) -> dict[str, tuple[int, ...]]:
        """Return the tokens of so many sequences by phase; none if they are not stated."""
        stated, place = raw.get("loads", {}), f"{place}.loads"
        if type(stated) is not dict:
            self.fail(place, f"must be an object: {shown(stated)}")
        loads = {name: self.integers(stated, name, place) for name in stated}
        for name, tokens in loads.items():
            if len(tokens) != number:
                self.fail(f"{place}.{name}", f"has {len(tokens)} values for {number} sequences")
        return loads

    def share(self, raw: Any, place: str) -> SequenceShare:
        self.fields(raw, place, _SEQUENCE)
        length = self.integer(raw, "length", place, 1)
        ranges: list[Range] = []
        least_start = 0
        for number, entry in enumerate(self.items(raw, "ranges", place)):
            held = self.integer_list(entry, f"{place}.ranges[{number}]")
            if len(held) != 2 or not least_start <= held[0] < held[1] <= length:
                self.fail(
                    f"{place}.ranges[{number}]",
                    f"must be [start, stop) within {least_start} … {length}: {list(held)}",
                )
            ranges.append((held[0], held[1]))
            least_start = held[1]
        if len(ranges) > 2:
            self.fail(f"{place}.ranges", f"has {len(ranges)} ranges, at most two")
        return SequenceShare(
            position=self.integer(raw, "position", place),
            id=self.integer(raw, "id", place),
            length=length,
            ranges=tuple(ranges),
        )

    def lengths(self, raw: dict[str, Any], name: str, place: str, count: int) -> tuple[int, ...]:
        """Return the lengths whose offsets are written: ``count`` of them, none negative."""
        offsets = self.integers(raw, name, place)
        if len(offsets) != count + 1 or offsets[0] != 0:
            self.fail(f"{place}.{name}", f"must be 0 and then {count} offsets")
        lengths = tuple(after - before for before, after in pairwise(offsets))
        if lengths and min(lengths) < 0:
            self.fail(f"{place}.{name}", "descends")
        return lengths


def _neighbors(ring: Group, at_ring: int, pp: Group, at_pp: int) -> dict[str, int | None]:
    """Derive the neighbors from the groups, as ``rank_view`` does."""
    return {
        "ring_previous": ring[at_ring - 1] if len(ring) > 1 else None,
        "ring_next": ring[(at_ring + 1) % len(ring)] if len(ring) > 1 else None,
        "pp_previous": pp[at_pp - 1] if at_pp > 0 else None,
        "pp_next": pp[at_pp + 1] if at_pp < len(pp) - 1 else None,
    }
