"""How other trainers fill a step on equal ranks: greedy rules, LoongForge's and VeOmni's with them.

TRL packs by best fit, longest first, into windows of the context, which reach ranks in a random
order. slime packs by first fit as sequences come, splits the windows with most tokens until ranks
have equally many, and assigns them in turn. Hugging Face's batch rebalancing cuts the sorted
sequences into as many runs as ranks have micro-batches and moves the cuts while the costliest
run gives one sequence to the cheapest. Its cost is l + 0.001·l² of padded sequences, and each run
is padded to its longest.

Sources: ``pack_dataset`` ("bfd") of TRL 1.16; ``build_dp_schedule`` of slime, August 2026;
``BatchRebalanceSampler`` of transformers 5.23, without its freezing of runs of one sequence.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import ceil

import numpy as np

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.simulation.iteration import Execution
from seqplan.planner.systems.loongforge import assign_rebalanced_windows
from seqplan.planner.systems.setting import ComparedSystem, Setting, Skipped
from seqplan.planner.systems.static_best import static_without_stages
from seqplan.planner.systems.veomni import assign_dynamic_batches
from seqplan.planner.systems.windows import fill_in_order, round_robin
from seqplan.plans.scheme import Scheme

QUADRATIC = 0.001
"""Weight of length² next to length in Hugging Face's cost."""

MOVES = 30
"""Moves of a cut for each run, at most."""

ByRank = list[list[list[int]]]
"""Positions of sequences by rank and micro-batch."""

Rule = Callable[[Batch, int, SchemeModel], tuple[Batch, ByRank]]
"""Deals a batch to ranks: the batch, its lengths padded perhaps, and its micro-batches."""


def trainer_rules(setting: Setting) -> list[ComparedSystem | Skipped]:
    """Set up the rules on our fastest static scheme without stages."""
    best = static_without_stages(setting)
    if best is None:
        why = f"no static strategy without stages holds {setting.longest:,} tokens"
        return [Skipped(key, name, why) for key, name, _, _ in _RULES]
    ((scheme, ranks),) = best.counts
    return [
        ComparedSystem(
            key,
            name,
            f"{best}; {how}",
            False,
            partial(_execution, setting, scheme, ranks, rule),
            best,
        )
        for key, name, how, rule in _RULES
    ]


def _execution(setting: Setting, scheme: Scheme, ranks: int, rule: Rule, batch: Batch) -> Execution:
    assigned, by_rank = rule(batch, ranks, setting.models[scheme])
    return setting.replicas(assigned, scheme, by_rank)


def best_fit_windows(batch: Batch, ranks: int, model: SchemeModel) -> tuple[Batch, ByRank]:
    """Fill windows of the longest sequence's size by best fit, and deal them at random."""
    padded = [model.scheme.pad_sequence(length) for length in batch.lengths]
    window = max(padded)
    windows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # ascending
    for i in sorted(range(len(padded)), key=lambda i: (-padded[i], i)):
        place = bisect_left(room, (padded[i], -1))
        left, number = room.pop(place) if place < len(room) else (window, len(windows))
        if number == len(windows):
            windows.append([])
        windows[number].append(i)
        insort(room, (left - padded[i], number))
    order = np.random.default_rng(batch.step).permutation(len(windows))
    return batch, round_robin([windows[k] for k in order], ranks)


def first_fit_split(batch: Batch, ranks: int, model: SchemeModel) -> tuple[Batch, ByRank]:
    """Fill micro-batches as sequences come, split the largest until ranks have equally many."""
    padded = [model.scheme.pad_sequence(length) for length in batch.lengths]
    parts = fill_in_order(padded, model.max_sequence)

    def entry(number: int) -> tuple[int, int]:
        return -sum(padded[i] for i in parts[number]), -number

    largest = [entry(number) for number, part in enumerate(parts) if len(part) > 1]
    heapify(largest)
    while len(parts) % ranks and largest:
        k = -heappop(largest)[1]
        halves: tuple[list[int], list[int]] = ([], [])
        tokens = [0, 0]
        for i in sorted(parts[k], key=lambda i: -padded[i]):
            half = int(tokens[1] < tokens[0])
            halves[half].append(i)
            tokens[half] += padded[i]
        parts[k] = halves[0]
        parts.append(halves[1])
        for number in (k, len(parts) - 1):
            if len(parts[number]) > 1:
                heappush(largest, entry(number))
    return batch, round_robin(parts, ranks)


def cut_balanced_runs(batch: Batch, ranks: int, model: SchemeModel) -> tuple[Batch, ByRank]:
    """Cut the sorted sequences into runs of about equal cost, each padded to its longest.

    With the fewest micro-batches a rank for which every run fits; the trainer leaves it to users.
    """
    order = sorted(range(len(batch.lengths)), key=lambda i: (-batch.lengths[i], i))
    sorted_lengths = [batch.lengths[i] for i in order]
    number = max(1, ceil(batch.tokens / (model.max_sequence * ranks)))
    while True:
        counts = _balance_counts(sorted_lengths, min(ranks * number, len(order)))
        firsts = np.cumsum([0, *counts[:-1]]).tolist()
        runs = [order[first : first + count] for first, count in zip(firsts, counts, strict=True)]
        longest = [batch.lengths[run[0]] for run in runs]
        tokens = [
            len(run) * model.scheme.pad_sequence(length)
            for run, length in zip(runs, longest, strict=True)
        ]
        if max(tokens) <= model.max_sequence or len(runs) == len(order):
            break
        number += 1
    lengths = list(batch.lengths)
    for run, length in zip(runs, longest, strict=True):
        for i in run:
            lengths[i] = length
    costs = [_cost(len(run), length) for run, length in zip(runs, longest, strict=True)]
    costliest = sorted(range(len(runs)), key=lambda k: (-costs[k], k))
    assigned = round_robin([runs[k] for k in costliest], ranks)
    return Batch(batch.step, batch.ids, tuple(lengths), batch.loss_tokens), assigned


def _cost(count: int, longest: int) -> float:
    return count * longest + QUADRATIC * count * longest * longest


def _balance_counts(lengths: Sequence[int], runs: int) -> list[int]:
    """Count the sequences of each run: the costliest gives one to the cheapest if that helps."""
    base, more = divmod(len(lengths), runs)
    counts = [base + (k < more) for k in range(runs)]
    best, least = list(counts), float("inf")
    counts_tried = set()
    for _ in range(max(runs * MOVES, len(lengths))):
        if tuple(counts) in counts_tried:
            break
        counts_tried.add(tuple(counts))
        firsts = np.cumsum([0, *counts[:-1]])
        costs = [_cost(n, lengths[first]) for n, first in zip(counts, firsts, strict=True)]
        spread = max(costs) - min(costs)
        if spread < least:
            best, least = list(counts), spread
        giving = [k for k in range(runs) if counts[k] > 1]
        if not giving or not spread:
            break
        high = max(giving, key=lambda k: costs[k])
        counts[high] -= 1
        counts[costs.index(min(costs))] += 1
    return best


_RULES: tuple[tuple[str, str, str, Rule], ...] = (
    ("trl", "TRL-like, best-fit windows", "windows assigned at random", best_fit_windows),
    ("slime", "slime-like, first fit", "windows assigned in turn", first_fit_split),
    (
        "rebalance",
        "Hugging Face's batch rebalancing",
        "runs of sorted sequences, padded",
        cut_balanced_runs,
    ),
    (
        "loongforge",
        "LoongForge-like, windows rebalanced",
        "full windows assigned at random, samples moved if ranks differ by 20 %",
        assign_rebalanced_windows,
    ),
    (
        "veomni",
        "VeOmni-like, dynamic batches",
        "windows filled in order, assigned in turn",
        assign_dynamic_batches,
    ),
)
