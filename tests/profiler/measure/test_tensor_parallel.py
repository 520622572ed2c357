"""Layers, embedding and loss that are split over real ranks are those of one rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.profiler.measure.bench import filled_plan
from seqplan.profiler.measure.tensor_parallel import (
    ColumnParallel,
    TensorRanks,
    VocabularyParallelEmbedding,
    split_layer,
    tensor_ranks,
    vocabulary_loss,
)
from seqplan.runtime.sequence_parallel.context import (
    AttentionContext,
    attention_context,
    local_context,
)
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.sequence_parallel.unified import attention
from seqplan.runtime.training.model import DecoderLayer, ModelConfig, rotations, token_loss

GATE = 1e-10
LENGTHS = (9, 1, 14)
VOCAB = 37


def context() -> AttentionContext:
    """Three documents, all on this rank."""
    return local_context(LENGTHS)


def layer_of(config: ModelConfig) -> DecoderLayer:
    torch.manual_seed(1)
    return DecoderLayer(config, attention).double()


def through(layer: nn.Module, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Output and input gradient; the parameters have theirs."""
    torch.manual_seed(2)
    hidden = torch.randn(sum(LENGTHS), config.hidden, dtype=torch.float64, requires_grad=True)
    at = context()
    out = layer(hidden, rotations(at.positions, config, torch.float64), at)
    out.backward(torch.randn_like(hidden))
    assert hidden.grad is not None
    return out.detach(), hidden.grad


def layer_errors(rank: int, world_size: int, kv_heads: int, checkpointing: str) -> dict[str, float]:
    """The largest differences between this rank's part and the same of a whole layer."""
    config = ModelConfig(hidden=32, heads=4, kv_heads=kv_heads, ffn=24, checkpointing=checkpointing)
    ranks = tensor_ranks(world_size, rank, world_size)
    assert ranks is not None
    whole = layer_of(config)
    parts = split_layer(layer_of(config), ranks)
    assert parts.heads == 4 // world_size
    right, mine = through(whole, config), through(parts, config)
    errors = {
        name: (one - other).abs().max().item()
        for name, one, other in zip(("out", "input"), right, mine, strict=True)
    }
    # The whole layer's gradient, split as a layer that has it for its weights.
    expected = layer_of(config)
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            gradient = whole.get_parameter(name).grad
            assert gradient is not None
            parameter.copy_(gradient)
    split_layer(expected, ranks)
    for name, parameter in parts.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        if name == "qkv.weight" and kv_heads < world_size:
            gradient = summed_copies(gradient, parts, world_size // kv_heads, ranks)
        errors[name] = (gradient - expected.get_parameter(name)).abs().max().item()
    return errors


def summed_copies(gradient: Tensor, layer: DecoderLayer, width: int, ranks: TensorRanks) -> Tensor:
    """The gradient of a key and a value head that ``each`` neighbouring ranks have a copy of."""
    rows = layer.heads * layer.width
    gathered = [torch.empty_like(gradient) for _ in range(ranks.degree)]
    dist.all_gather(gathered, gradient, group=ranks.group)
    first = ranks.index // width * width
    shared = torch.stack([other[rows:] for other in gathered[first : first + width]]).sum(0)
    return torch.cat((gradient[:rows], shared))


def sequence_parallel_errors(rank: int, world_size: int, scheme: Scheme) -> dict[str, float]:
    """Output and input gradient of this rank's tokens, under tp beside Ulysses or ring."""
    config = ModelConfig(hidden=32, heads=4, kv_heads=2, ffn=24)
    whole, parts = layer_of(config), layer_of(config)
    ranks = tensor_ranks(scheme.tp, rank, world_size)
    assert ranks is not None
    split_layer(parts, ranks)
    (pipeline,) = rank_view(filled_plan(scheme, LENGTHS, world_size), rank).pipelines
    (micro_batch,) = pipeline.micro_batches
    assert pipeline.at.tp == ranks.index
    offsets = micro_batch.cu_seqlens()
    rows = torch.cat(
        [
            torch.arange(start, stop) + int(offsets[at])
            for at, share in enumerate(micro_batch.sequences)
            for start, stop in share.ranges
        ]
    )
    right = through(whole, config)
    torch.manual_seed(2)
    hidden = torch.randn(sum(LENGTHS), config.hidden, dtype=torch.float64)
    gradient = torch.randn_like(hidden)[rows]
    mine = hidden[rows].requires_grad_()
    at = attention_context(pipeline, micro_batch, Peers(dist.group.WORLD))
    out = parts(mine, rotations(at.positions, config, torch.float64), at)
    out.backward(gradient)
    assert mine.grad is not None
    return {
        "out": (out - right[0][rows]).abs().max().item(),
        "input": (mine.grad - right[1][rows]).abs().max().item(),
    }


def beside_sequence_parallelism(rank: int, world_size: int) -> dict[str, float]:
    return {
        f"{name}, {scheme}": error
        for scheme in (Scheme(tp=2, ulysses=2), Scheme(tp=2, ring=2))
        for name, error in sequence_parallel_errors(rank, world_size, scheme).items()
    }


def test_tensor_parallel_beside_ulysses_and_ring() -> None:
    for errors in run_ranks(beside_sequence_parallelism, 4):
        assert len(errors) == 4
        for name, error in errors.items():
            assert error <= GATE, (name, error)


def vocabulary_errors(rank: int, world_size: int) -> dict[str, float]:
    """Embedding, head and loss; the vocabulary does not divide evenly."""
    ranks = tensor_ranks(world_size, rank, world_size)
    assert ranks is not None
    torch.manual_seed(3)
    words = torch.randn(VOCAB, 8, dtype=torch.float64)
    tokens = torch.randint(VOCAB, (50,))
    table = words.clone().requires_grad_()
    head = words.flip(0).clone().requires_grad_()
    loss = token_loss(nn.functional.embedding(tokens, table) @ head.T, tokens)
    loss.backward()
    rows = ranks.part(VOCAB)
    embedding = VocabularyParallelEmbedding(words[rows], VOCAB, ranks)
    column = ColumnParallel(words.flip(0)[rows], ranks)
    mine = vocabulary_loss(column(embedding(tokens)), tokens, VOCAB, ranks)
    mine.backward()
    errors = {"loss": (loss - mine).abs().item()}
    for name, right, part in (("table", table, embedding), ("head", head, column)):
        assert right.grad is not None
        assert part.weight.grad is not None
        errors[name] = (right.grad[rows] - part.weight.grad).abs().max().item()
    return errors


def all_errors(rank: int, world_size: int) -> dict[str, float]:
    errors = {
        f"{name}, {kv_heads} KV heads": error
        for kv_heads, checkpointing in ((4, "none"), (2, "mlp"), (1, "full"))
        for name, error in layer_errors(rank, world_size, kv_heads, checkpointing).items()
    }
    return errors | vocabulary_errors(rank, world_size)


@pytest.mark.parametrize("world_size", [2, 4])
def test_parts_are_those_of_the_whole(world_size: int) -> None:
    for errors in run_ranks(all_errors, world_size):
        assert len(errors) == 3 * (2 + 6) + 3
        for name, error in errors.items():
            assert error <= GATE, (name, error)


def groups_of(rank: int, world_size: int) -> list[int] | None:
    ranks = tensor_ranks(2, rank, world_size)
    return None if ranks is None else dist.get_process_group_ranks(ranks.group)


def test_neighbours_form_groups_and_one_may_be_left_over() -> None:
    assert run_ranks(groups_of, 3) == [[0, 1], [0, 1], None]


def test_heads_that_cannot_be_split_are_named() -> None:
    layer = DecoderLayer(ModelConfig(hidden=48, heads=6, kv_heads=2), attention)
    with pytest.raises(ValueError, match="tp = 4 does not split 6 heads and 2 KV heads"):
        split_layer(layer, TensorRanks(0, 4))
