"""Four CPU ranks of which one computes 1.5 times as long, planned with and without its factor.

Every rank trains the same small model on its part of each step; the slow one computes half of each
micro-batch once more, for nothing. Its factor is found from the ranks' computing times
(``seqplan.SlowRanks``). A step takes as long as its slowest rank, in CPU-seconds, as ranks share
cores here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.ranks import on_ranks
from benchmarks.settings import Data, markdown
from seqplan import Cost, SlowRanks, balance

RANKS, SLOW, FACTOR = 4, 2, 1.5
STEPS, COMPARED = 80, 16
"""Steps, the last of which are compared: the factor is known after 64."""

DOCUMENTS, MEDIAN, LONGEST, CAPACITY = 64, 60, 512, 1024
VOCABULARY, HIDDEN = 64, 256
TO_REACH = 1.2


@dataclass
class Ran:
    """Steps of one rank: CPU-seconds, losses of all ranks, and the factors at the end."""

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    slowdown: tuple[float | None, ...] = ()


def run(data: Sequence[Data]) -> None:
    """Print one table; no data set is used."""
    blind = on_ranks(RANKS, _train, (False,))
    aware = on_ranks(RANKS, _train, (True,))
    rows, slowest = [], []
    for name, ranks in (("without its factor", blind), ("with its factor", aware)):
        steps = zip(*(of_rank.seconds[-COMPARED:] for of_rank in ranks), strict=True)
        slowest.append(statistics.median(map(max, steps)))
        mean = [statistics.median(of_rank.seconds[-COMPARED:]) for of_rank in ranks]
        rows.append([name, f"{slowest[-1]:.3f} s", ", ".join(f"{s:.3f}" for s in mean)])
    print(f"### One rank of {RANKS} that takes {FACTOR} times as long\n")
    print(markdown(["planned", "slowest rank of a step", "ranks, CPU-seconds"], rows) + "\n")
    ideal = FACTOR * (RANKS - 1 + 1 / FACTOR) / RANKS
    print(
        f"faster by {slowest[0] / slowest[1]:.2f} (to reach: {TO_REACH}, at most {ideal:.2f}); "
        f"factors found: {aware[0].slowdown}"
    )
    apart = max(abs(a - b) for a, b in zip(blind[0].losses, aware[0].losses, strict=True))
    print(f"losses differ by {apart:.1e} at most in {STEPS} steps\n")


def _train(rank: int, aware: bool) -> Ran:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, HIDDEN),
        torch.nn.Linear(HIDDEN, 4 * HIDDEN),
        torch.nn.GELU(),
        torch.nn.Linear(4 * HIDDEN, VOCABULARY),
    ).double()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    found, ran, cost = SlowRanks(RANKS), Ran(), Cost(0.0, 1.0, 10.0)
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        lengths = rng.lognormal(np.log(MEDIAN), 1.0, DOCUMENTS).astype(int).clip(4, LONGEST)
        slowdown = found.slowdown if aware else None
        balanced = balance(lengths, RANKS, CAPACITY, cost, execution="uniform", slowdown=slowdown)
        began = time.thread_time()
        loss = torch.zeros((), dtype=torch.float64)
        gradients = [torch.zeros_like(p) for p in parameters]
        for micro in filter(None, balanced.micro_batches[rank]):
            tokens, labels = _draw_tokens(lengths, micro, step)
            if rank == SLOW:  # as much again as half of the micro-batch, for nothing
                half = len(tokens) // 2
                torch.autograd.grad(_sum_losses(model, tokens[:half], labels[:half]), parameters)
            part = _sum_losses(model, tokens, labels) / int(lengths.sum())
            loss += part.detach()
            for gradient, more in zip(
                gradients, torch.autograd.grad(part, parameters), strict=True
            ):
                gradient += more
        seconds = time.thread_time() - began
        for parameter, gradient in zip(parameters, gradients, strict=True):
            dist.all_reduce(gradient)
            parameter.grad = gradient
        dist.all_reduce(loss)
        optimizer.step()
        times: list[float | None] = [None] * RANKS
        dist.all_gather_object(times, seconds * 1e3)
        found.observe(balanced.rank_ms, times)
        ran.seconds.append(seconds)
        ran.losses.append(float(loss))
    ran.slowdown = found.slowdown
    return ran


def _draw_tokens(
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]], micro: Sequence[int], step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the tokens and labels of a micro-batch, which follow from step and place."""
    drawn = []
    for place in micro:
        generator = torch.Generator().manual_seed(1000 * step + place)
        drawn.append(torch.randint(VOCABULARY, (2, int(lengths[place])), generator=generator))
    tokens, labels = torch.cat(drawn, dim=1)
    return tokens, labels


def _sum_losses(model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(tokens), labels, reduction="sum")
