"""The timed part of a rank's pipeline stage: a few layers, and its end of the model.

It is the runtime's stage, over random parameters of this rank's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seqplan.plans.views.parameter_layout import Shard
from seqplan.plans.views.unit_layout import UnitLayout
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.models.llama import ModelConfig, rotations
from seqplan.runtime.pipeline.llama_units import list_expert_units, list_units
from seqplan.runtime.pipeline.stage import Stage, StageInput
from seqplan.runtime.sequence_parallel.context import AttentionContext
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states.unit import natural
from seqplan.runtime.tensor_parallel.groups import TensorGroup
from seqplan.runtime.tensor_parallel.split import TensorSplit


@dataclass(frozen=True, slots=True)
class Call:
    """A computation in its two halves."""

    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], None]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Global ranks at the same place of the stages before and after, or None."""

    previous: int | None
    following: int | None


@dataclass(frozen=True, slots=True)
class StageWork:
    """This rank's part of a micro-batch: its stage and the calls on it.

    ``alone``: the stage's end without the transfers; ``whole``: a layer that recomputes nothing;
    ``experts``: the layers' experts alone, None if they are not split over ranks.
    """

    stage: MeasuredStage
    layers: Call
    whole: Call | None
    alone: Call
    ends: Call
    experts: Call | None = None


class RandomParameters:
    """The parameters of ``shard`` in a model of ``config``, drawn at random on ``device``.

    ``held``: experts of each layer that are here.
    """

    def __init__(
        self,
        config: ModelConfig,
        shard: Shard,
        device: torch.device,
        dtype: torch.dtype,
        held: int = 0,
    ) -> None:
        self.leaves: list[nn.Parameter] = []
        self._units: dict[str, dict[str, Tensor]] = {}
        experts = list_expert_units(config, held, config.expert_ffn)
        for name, layouts in (*list_units(config, config.experts), *experts):
            ranges = UnitLayout(name, layouts, config.layers, 1).held_ranges(shard)
            unit = self._units[name] = {}
            for part in ranges:
                stored = torch.randn(part.numel, device=device, dtype=dtype)
                leaf = nn.Parameter(stored if part.layout.vector else 0.02 * stored)
                self.leaves.append(leaf)
                whole = natural(part.layout, leaf)
                of_experts = ".experts." in part.layout.name
                shape = (held, -1, whole.shape[1]) if of_experts else whole.shape
                unit[part.layout.name] = whole.view(shape)

    def parameters(self, unit: str) -> Mapping[str, Tensor]:
        """See ``ParameterSource``."""
        return self._units[unit]


class MeasuredStage:
    """``layers`` decoder layers with embedding, norm and head, of one rank of ``group``.

    ``group``: this rank's tp group, None if tp is 1; ``blocks``: of experts, None if each rank has
    all.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: int,
        group: TensorGroup | None,
        device: torch.device,
        dtype: torch.dtype,
        blocks: ExpertBlocks | None = None,
    ) -> None:
        self.config, self._blocks = replace(config, layers=layers), blocks
        self._group, self._device, self._dtype = group, device, dtype
        tp, tp_rank = (1, 0) if group is None else (group.degree, group.index)
        self._shard = Shard(tp, 1, tp_rank, 0)
        held = config.experts if blocks is None else blocks.count_local(config.experts)
        self._source = RandomParameters(self.config, self._shard, device, dtype, held)
        self._stage = Stage(self.config, self._shard, self._source, blocks)

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters of the stage on this rank."""
        return self._source.leaves

    def forget_gradients(self) -> None:
        """Free the parameters' gradients."""
        for leaf in self._source.leaves:
            leaf.grad = None

    def work(self, context: AttentionContext, neighbors: Neighbours, peers: Peers) -> StageWork:
        """Prepare the micro-batch of ``context`` on a stage between ``neighbors``."""
        alone = self.ends_call(context, neighbors)
        ends = with_transfers(alone, neighbors, self.hidden(context), peers)
        single = neighbors == Neighbours(None, None)
        return StageWork(
            stage=self,
            layers=self.layers_call(context),
            whole=self.whole_layer_call(context),
            alone=alone,
            ends=alone if single else ends,
            experts=self.experts_call(context),
        )

    def layers_call(self, context: AttentionContext) -> Call:
        """Prepare forward and backward of the layers on the micro-batch of ``context``."""
        return self._through(self._stage, self._stage.layers, context)

    def whole_layer_call(self, context: AttentionContext) -> Call | None:
        """Prepare one layer that keeps everything, None if all layers do."""
        if self.config.recompute == "none":
            return None
        keeping = replace(self.config, recompute="none")
        stage = Stage(keeping, self._shard, self._source, self._blocks)
        return self._through(stage, [0], context)

    def experts_call(self, context: AttentionContext) -> Call | None:
        """Prepare the layers' experts and their exchanges alone; None if no ranks share them."""
        if self._blocks is None:
            return None
        rows = self._split(context).token_rows
        hidden, gradient = self.hidden(context).requires_grad_(), self.hidden(context)
        routed = [self._stage.find_experts(layer) for layer in self._stage.layers]

        def forward() -> Tensor:
            out: Tensor = hidden
            for experts in routed:
                assert experts is not None
                out = experts.forward(out, rows)[0]
            return out

        return Call(forward, lambda out: torch.autograd.backward(out, gradient))

    def _through(self, stage: Stage, layers: Iterable[int], context: AttentionContext) -> Call:
        work = self._input(context)
        hidden, gradient = self.hidden(context).requires_grad_(), self.hidden(context)

        def forward() -> Tensor:
            rotation = rotations(context.positions, self.config, self._dtype)
            out: Tensor = hidden
            for layer in layers:
                out = stage.layer(layer, out, rotation, work)
            return out

        return Call(forward, lambda out: torch.autograd.backward(out, gradient))

    def ends_call(self, context: AttentionContext, neighbors: Neighbours) -> Call:
        """Prepare the ends: of the first stage the embedding, of the last norm, head and loss.

        A single stage adds both, one after the other; a stage in between nothing.
        """
        work, stage = self._input(context), self._stage
        if neighbors.following is None:
            hidden = self.hidden(context).requires_grad_()

            def loss() -> Tensor:
                last_hidden = stage.embed(work) if neighbors.previous is None else hidden
                return stage.loss(last_hidden, work)

            return Call(loss, torch.autograd.backward)
        gradient = self.hidden(context)
        if neighbors.previous is None:
            return Call(
                lambda: stage.embed(work), lambda out: torch.autograd.backward(out, gradient)
            )
        return Call(lambda: gradient, lambda out: None)

    def hidden(self, context: AttentionContext) -> Tensor:
        """Draw random hidden states of this rank's rows, (rows, hidden)."""
        rows = self._split(context).rows
        return torch.randn(rows, self.config.hidden, device=self._device, dtype=self._dtype)

    def _split(self, context: AttentionContext) -> TensorSplit:
        return TensorSplit(len(context.positions), self._group)

    def _input(self, context: AttentionContext) -> StageInput:
        tokens = torch.randint(self.config.vocab, context.positions.shape, device=self._device)
        return StageInput(tokens, tokens, context, self._split(context))


def with_transfers(call: Call, neighbors: Neighbours, like: Tensor, peers: Peers) -> Call:
    """Add to a call what 1F1B moves in a micro-batch after each half.

    After forward every stage sends a tensor shaped ``like`` its hidden states (rows, hidden) to the
    next and receives one from the one before; after backward gradients go the other way. All stages
    of the pipeline call it together. Every rank of tp sends its rows.
    """
    outgoing, received = torch.empty_like(like), torch.empty_like(like)

    def shift(target: int | None, origin: int | None) -> None:
        peers.transfer(
            [] if target is None else [(outgoing, target)],
            [] if origin is None else [(received, origin)],
        ).wait()

    def forward() -> Tensor:
        out = call.forward()
        shift(neighbors.following, neighbors.previous)
        return out

    def backward(out: Tensor) -> None:
        call.backward(out)
        shift(neighbors.previous, neighbors.following)

    return Call(forward, backward)
