"""Products, embedding and loss of tp ranks against the same of one process, with gradients."""

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor, nn

from seqplan.runtime.tensor_parallel.groups import TensorGroups
from seqplan.runtime.tensor_parallel.split import TensorSplit

RANKS, HIDDEN, FEATURES, WORDS = 3, 8, 7, 11
TOKENS = (1, 2, 6, 10)
"""Fewer than ranks, a multiple of them, and neither."""


def operands(tokens: int) -> dict[str, Tensor]:
    """Float64, the same on every rank; ``down`` is stored transposed, as the model's is."""
    generator = torch.Generator().manual_seed(tokens)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    labels = torch.randint(WORDS, (tokens,), generator=generator)
    labels[tokens // 2] = -100
    return {
        "tokens": torch.randint(WORDS, (tokens,), generator=generator),
        "labels": labels,
        "embedding": drawn(WORDS, HIDDEN),
        "up": drawn(FEATURES, HIDDEN),
        "down": drawn(FEATURES, HIDDEN).t(),
        "head": drawn(WORDS, HIDDEN),
    }


def part(size: int, index: int) -> slice:
    return slice(index * size // RANKS, (index + 1) * size // RANKS)


def of_rank(split: TensorSplit, whole: dict[str, Tensor], index: int) -> list[Tensor]:
    """Loss of a small network, and gradients of this rank's parts of its weights."""
    words, features = part(WORDS, index), part(FEATURES, index)
    weights = [
        weight.detach().requires_grad_()
        for weight in (
            whole["embedding"][words],
            whole["up"][features],
            whole["down"][:, features],
            whole["head"][words],
        )
    ]
    embedding, up, down, head = weights
    hidden = split.embed(whole["tokens"], embedding, words.start)
    assert hidden.shape == (split.rows, HIDDEN)
    hidden = hidden + split.row(split.column(hidden, up).tanh(), down)
    loss = split.loss(split.column(hidden, head), whole["labels"], words.start)
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(weight.grad for weight in weights)]  # type: ignore[list-item]


def of_one(whole: dict[str, Tensor]) -> list[Tensor]:
    names = ("embedding", "up", "down", "head")
    embedding, up, down, head = (whole[name].detach().requires_grad_() for name in names)
    hidden = nn.functional.embedding(whole["tokens"], embedding)
    hidden = hidden + (hidden @ up.t()).tanh() @ down.t()
    loss = nn.functional.cross_entropy(hidden @ head.t(), whole["labels"], reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), embedding.grad, up.grad, down.grad, head.grad]  # type: ignore[list-item]


def both_ways(rank: int, world_size: int) -> dict[tuple[bool, int], list[Tensor]]:
    ranks = tuple(range(world_size))
    assert dist.group.WORLD is not None
    results = {}
    for by_messages in (False, True):
        groups = TensorGroups(dist.group.WORLD, (world_size,), by_messages=by_messages)
        for tokens in TOKENS:
            split = TensorSplit(tokens, groups.of(ranks))
            results[by_messages, tokens] = of_rank(split, operands(tokens), rank)
    return results


@pytest.fixture(scope="module")
def ranks() -> list[dict[tuple[bool, int], list[Tensor]]]:
    return run_ranks(both_ways, RANKS)


@pytest.mark.parametrize("by_messages", [False, True], ids=["groups", "messages"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_ranks_compute_like_one_process(
    ranks: list[dict[tuple[bool, int], list[Tensor]]], tokens: int, by_messages: bool
) -> None:
    loss, embedding, up, down, head = of_one(operands(tokens))
    for index, results in enumerate(ranks):
        words, features = part(WORDS, index), part(FEATURES, index)
        expected = [loss, embedding[words], up[features], down[:, features], head[words]]
        torch.testing.assert_close(results[by_messages, tokens], expected, rtol=1e-12, atol=1e-13)


def test_a_tp_of_one_is_the_plain_operation() -> None:
    whole = operands(6)
    names = ("embedding", "up", "down", "head")
    weights = [whole[name].detach().requires_grad_() for name in names]
    split = TensorSplit(6)
    hidden = split.embed(whole["tokens"], weights[0], 0)
    hidden = hidden + split.row(split.column(hidden, weights[1]).tanh(), weights[2])
    loss = split.loss(split.column(hidden, weights[3]), whole["labels"], 0)
    loss.backward()  # type: ignore[no-untyped-call]
    results = [loss.detach(), *(weight.grad for weight in weights)]
    torch.testing.assert_close(results, of_one(whole), rtol=1e-12, atol=1e-13)
