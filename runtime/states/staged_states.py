"""The states of a model that is cut by tensor and pipeline parallelism, otherwise in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.plans.views.optimizer_sharding import Sharding, unit_layouts
from seqplan.plans.views.parameter_layout import ParameterLayout, Shard
from seqplan.plans.views.placement import Placement
from seqplan.plans.views.resharding import UnitMoves, all_whole, shards_of, unit_moves
from seqplan.runtime.errors import communicating
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.replicas import check_equal_tensors
from seqplan.runtime.states.sync import MessageSync, ParameterSync, collective_sync
from seqplan.runtime.states.unit import Unit, flatten_to_storage, natural
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
    masters are zero until they are loaded.
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
        ranks = dist.get_world_size(group)
        layouts = unit_layouts(units, layers, ranks, sharding)
        self.dtype = dtype
        super().__init__([Unit(layout, self._rank, dtype, device) for layout in layouts], group)
        for unit in () if without_values else self.units:
            whole = torch.empty(unit.elements, dtype=dtype, device=device)
            if self._rank == 0:
                for layout, part in unit.of_whole(whole):
                    part.copy_(flatten_to_storage(layout, values[layout.name].detach()))
            with communicating("taking over the first rank's parameters"):
                dist.broadcast(whole, dist.get_global_rank(group, 0), group=group)
            unit.master[: unit.stop - unit.start] = whole[unit.start : unit.stop]
        self._by_name = {unit.name: at for at, unit in enumerate(self.units)}
        self._held: dict[str, list[tuple[ParameterLayout, Tensor]]] = {}
        self._laid_out: Placement | None = None
        self._last_held = -1
        self.moves = lru_cache(maxsize=PLACEMENTS)(self._moves)

    def begin(self, placement: Placement) -> None:
        """Lay out what this rank holds in a step and start all transfers of parameters.

        ``ValueError`` if a rank's pipelines need different shards.
        """
        moves = self.moves(placement)
        shard = WHOLE if moves is None else shards_of(placement).get(self._rank)
        if self._laid_out != placement:
            syncs: list[ParameterSync] = []
            for at, unit in enumerate(self.units):
                if moves is None or unit.layout.everywhere:
                    self._lay_out(unit, WHOLE, unit.padded)
                    syncs.append(collective_sync(self._group, unit.layout))
                else:
                    held = () if shard is None else unit.layout.held_ranges(shard)
                    self._lay_out(unit, shard, sum(part.numel for part in held))
                    syncs.append(MessageSync(self._peers, self._rank, moves[at]))
            self.syncs = syncs
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
        return {layout.name: natural(layout, leaf) for layout, leaf in self._held[unit]}

    def _moves(self, placement: Placement) -> list[UnitMoves] | None:
        """List the messages of a placement, None if all parameters are whole everywhere."""
        shards = shards_of(placement)
        if all_whole(shards):
            return None
        return unit_moves([unit.layout for unit in self.units], shards, self._rank)

    def _lay_out(self, unit: Unit, shard: Shard | None, elements: int) -> None:
        unit.reserve(elements)
        held = self._held[unit.name] = []
        for index, part in enumerate(() if shard is None else unit.layout.held_ranges(shard)):
            leaf = unit.flat[part.local : part.local + part.numel].detach().requires_grad_()
            unit.hold(leaf, part.local)
            hook = self.watch(unit, index)
            leaf.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            held.append((part.layout, leaf))
