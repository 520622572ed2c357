"""The states of a model that is cut by tensor and pipeline parallelism, otherwise in each step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.views.optimizer_sharding import NamedUnit, Sharding, unit_layouts
from seqplan.plans.views.parameter_layout import ParameterLayout, Shard
from seqplan.plans.views.placement import Placement
from seqplan.plans.views.relays import relay_moves, saves_traffic
from seqplan.plans.views.resharding import (
    UnitMoves,
    all_whole,
    expert_holders,
    shards_of,
    unit_moves,
)
from seqplan.plans.views.unit_layout import UnitLayout
from seqplan.runtime.dtypes import accumulation_dtype
from seqplan.runtime.errors import communicating
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.replicas import check_equal_tensors
from seqplan.runtime.states.sync import (
    MessageSync,
    ParameterSync,
    Rail,
    RelayedSync,
    collective_sync,
)
from seqplan.runtime.states.unit import Unit, flatten_to_storage
from seqplan.runtime.states.unit_states import UnitStates

WHOLE = Shard(1, 1, 0, 0)
"""What a rank holds where every rank holds everything."""

PLACEMENTS = 64
"""Placements whose messages are remembered: steps repeat them."""


class StagedStates(UnitStates):
    """``units`` (name and parameters, in the order of use) of a model of ``layers`` layers.

    Units whose parameters tp does not cut at all, such as norms, are held whole by every rank.
    ``values``: every parameter as the model has it; the group's first rank's are taken, one unit at
    a time, so that the others' may be on the meta device. ``ValueError`` if names, shapes or
    dtypes differ. ``group`` carries nothing else. ``device``: where ranks compute, by default that
    of the values. ``sharding``: how ranks share a unit. ``without_values``: none are taken, and
    masters are zero until they are loaded. ``experts``: names of units of experts, whose layouts
    are of a part of the values' first axis; ``blocks``: the ranks that they are split over.
    ``rail``: of ``make_rail``, over which even slices of units travel if that saves traffic.
    """

    def __init__(
        self,
        units: Sequence[tuple[str, Sequence[ParameterLayout]]],
        layers: int,
        values: Mapping[str, Tensor],
        group: dist.ProcessGroup,
        device: torch.device | None = None,
        *,
        sharding: Sharding = "flat",
        without_values: bool = False,
        experts: Collection[str] = (),
        blocks: ExpertBlocks | None = None,
        rail: dist.ProcessGroup | None = None,
    ) -> None:
        first = next(iter(values.values()))
        dtype, device = first.dtype, first.device if device is None else device
        lacking = dist.get_rank(group) == 0 and first.is_meta and not without_values
        if device.type == "meta" or lacking:
            raise ValueError("the first rank's parameters have no values, or ranks no device")
        trained = [(name, value, True) for name, value in values.items()]
        check_equal_tensors(trained, group, device)
        self._rank = dist.get_rank(group)
        self._peers = Peers(group, "syncing parameters or gradients")
        self.dtype, self._experts, self._blocks = dtype, frozenset(experts), blocks
        self._shapes = {
            layout.name: values[layout.name].shape
            for name, layouts in units
            if name in self._experts
            for layout in layouts
        }
        laid_out = self._lay_out_units(units, layers, dist.get_world_size(group), sharding)
        super().__init__([self._make_unit(layout, device) for layout in laid_out], group)
        self._rail: Rail | None = None
        if rail is not None and sharding == "flat":
            rooms = [len(u.master) for u in self.units if u.name not in self._experts]
            exact = accumulation_dtype(dtype)
            self._rail = Rail(rail, max(rooms) * dist.get_world_size(rail), exact)
        for unit in () if without_values else self.units:
            self._take_values(unit, values)
        self._by_name = {unit.name: at for at, unit in enumerate(self.units)}
        self._held: dict[str, list[tuple[ParameterLayout, Tensor]]] = {}
        self._laid_out: Placement | None = None
        self._last_held = -1
        self.make_syncs = lru_cache(maxsize=PLACEMENTS)(self._make_syncs)

    def _lay_out_units(
        self, units: Sequence[NamedUnit], layers: int, ranks: int, sharding: Sharding
    ) -> list[UnitLayout]:
        """Lay out units over their owners: all ranks, or those with one part of the experts."""
        if self._blocks is None:
            return unit_layouts(units, layers, ranks, sharding)
        shared = [unit for unit in units if unit[0] not in self._experts]
        of_experts = [unit for unit in units if unit[0] in self._experts]
        laid_out = [
            *unit_layouts(shared, layers, ranks, sharding),
            *unit_layouts(of_experts, layers, ranks // self._blocks.degree, sharding),
        ]
        by_name = {layout.name: layout for layout in laid_out}
        return [by_name[name] for name, _ in units]

    def _make_unit(self, layout: UnitLayout, device: torch.device) -> Unit:
        if self._blocks is None or layout.name not in self._experts:
            return Unit(layout, self._rank, self.dtype, device)
        part, parts = self._blocks.part
        return Unit(layout, self._rank // parts, self.dtype, device, part=part, parts=parts)

    def _take_values(self, unit: Unit, values: Mapping[str, Tensor]) -> None:
        """Take the first rank's values of a unit, one part at a time."""
        layout = unit.layout
        for part in range(unit.parts):
            whole = torch.empty(layout.elements, dtype=self.dtype, device=unit.device)
            if self._rank == 0:
                for parameter, at in zip(layout.parameters, layout.offsets, strict=True):
                    stored = flatten_to_storage(parameter, values[parameter.name].detach())
                    whole[at : at + parameter.numel] = stored.view(unit.parts, -1)[part]
            with communicating("taking over the first rank's parameters"):
                dist.broadcast(whole, dist.get_global_rank(self._group, 0), group=self._group)
            if part == unit.part:
                unit.master[: unit.stop - unit.start] = whole[unit.start : unit.stop]

    def in_model(self, layout: ParameterLayout, elements: Tensor) -> Tensor:
        """As ``UnitStates.in_model``; experts have one more axis."""
        shape = self._shapes.get(layout.name)
        return (
            super().in_model(layout, elements) if shape is None else elements.view(-1, *shape[1:])
        )

    def begin(self, placement: Placement) -> None:
        """Lay out what this rank holds in a step and start all transfers of parameters.

        ``ValueError`` if a rank's pipelines need different shards.
        """
        syncs = self.make_syncs(placement)
        if self._laid_out != placement:
            for unit, (shard, elements, _) in zip(self.units, syncs, strict=True):
                self._lay_out(unit, shard, elements)
            self.syncs = [sync for _, _, sync in syncs]
            held_units = [at for at, unit in enumerate(self.units) if unit.parameters]
            self._last_held = max(held_units, default=-1)
            self._laid_out = placement
        self.all_gather()

    def parameters(self, unit: str) -> Mapping[str, Tensor]:
        """Return the parts of a unit's parameters that are held here, when they have come.

        As the model has them, (rows,) or (rows, columns) of this tp rank.
        """
        at = self._by_name[unit]
        self.finish_all_gather(at)
        if at == self._last_held:  # what this rank only sends would else stay until the step's end
            for other in range(len(self.units)):
                self.finish_all_gather(other)
        return {layout.name: self.in_model(layout, leaf) for layout, leaf in self._held[unit]}

    def _group_of(self, unit: Unit) -> dist.ProcessGroup:
        """Return the group of a unit's owners."""
        if self._blocks is None or unit.name not in self._experts:
            return self._group
        return self._blocks.replicas

    def _make_syncs(self, placement: Placement) -> list[tuple[Shard | None, int, ParameterSync]]:
        """List each unit's shard on this rank in a placement, its elements and its sync."""
        shards = shards_of(placement)
        moves: dict[int, UnitMoves] = {}  # of the others, every rank holds all
        rail, per_node = self._rail, 1
        if rail is not None:
            per_node = dist.get_world_size(self._group) // rail.nodes
            rail = rail if saves_traffic(shards, per_node) else None
        if not all_whole(shards):
            shared = [at for at, unit in enumerate(self.units) if not unit.layout.everywhere]
            layouts = [self.units[at].layout for at in shared]
            of_shared = (
                unit_moves(layouts, shards, self._rank)
                if rail is None
                else relay_moves(layouts, shards, self._rank, per_node)
            )
            moves |= zip(shared, of_shared, strict=True)
            if any(shard.pp > 1 for shard in shards.values()):
                moves |= self._expert_moves(shards)  # on the stages of their layers only
        shard = shards.get(self._rank)
        syncs: list[tuple[Shard | None, int, ParameterSync]] = []
        for at, unit in enumerate(self.units):
            if at not in moves:
                collective = collective_sync(self._group_of(unit), unit.layout)
                syncs.append((WHOLE, unit.padded, collective))
                continue
            held = () if shard is None else unit.layout.held_ranges(shard)
            messages = MessageSync(self._peers, self._rank, moves[at])
            relayed = rail is not None and unit.name not in self._experts
            sync = RelayedSync(messages, rail) if rail and relayed else messages
            syncs.append((shard, sum(part.numel for part in held), sync))
        return syncs

    def _expert_moves(self, shards: Mapping[int, Shard]) -> Iterator[tuple[int, UnitMoves]]:
        """Yield the messages of units of experts, between the ranks that hold the same ones."""
        part, parts = (0, 1) if self._blocks is None else self._blocks.part
        places = [at for at, unit in enumerate(self.units) if unit.name in self._experts]
        holders = expert_holders(shards, part, parts)
        layouts = [self.units[at].layout for at in places]
        for at, of_unit in zip(
            places, unit_moves(layouts, holders, self._rank // parts), strict=True
        ):
            yield at, of_unit.renumber(lambda place: place * parts + part)

    def _lay_out(self, unit: Unit, shard: Shard | None, elements: int) -> None:
        unit.reserve(elements)
        held = self._held[unit.name] = []
        for index, part in enumerate(() if shard is None else unit.layout.held_ranges(shard)):
            leaf = unit.flat[part.local : part.local + part.numel].detach().requires_grad_()
            unit.hold(leaf, part.local)
            hook = self.watch(unit, index)
            leaf.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            held.append((part.layout, leaf))
