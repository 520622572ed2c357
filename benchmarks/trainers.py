"""Planners of trainers and ours, on the same lengths: predicted time and CPU time.

Needs those trainers: ``./run bench integrations`` runs in the environment of
``./run test-integrations``. Trainers with one static scheme are compared with ``seqplan.balance``,
each by its code. verl assigns a batch to ranks by Karmarkar-Karp and then packs each rank's part;
TRL packs windows of the context by best fit, which reach ranks as they come; Hugging Face's batch
rebalancing cuts the sorted sequences into runs, each padded to its longest; torchtitan packs each
rank's samples in order into rows, padded to the context; ms-swift packs 1,000 samples at a time
into windows, which reach ranks in a shuffled order. slime is not on PyPI: its rule as seqplan's
comparison has it. Nor is NeMo-RL: it takes part if its checkout is on PYTHONPATH.
"""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from itertools import product
from statistics import fmean, median
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.planning import time_cpu
from benchmarks.settings import Data
from benchmarks.tables import Cells, Output, Table
from seqplan import Batch, Cost, Scheme, balance
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.integrations.degree_costs import by_degree, ring_costs
from seqplan.planner.lockstep.filling.rank_groups import plan_groups
from seqplan.planner.systems.trainers import first_fit_split

PROFILE, SCHEME = "llama-7b-a800-80gb", "tp2"
LONGEST, CAPACITY, RANKS = 32_768, 8_192, 64

MicroBatches = Sequence[Sequence[Sequence[int]]]
"""Places of sequences by micro-batch and rank."""

Schedule = Callable[[list[int], int], MicroBatches]

Lengths = list[list[list[int]]]
"""Lengths by rank and micro-batch, as they are computed."""

Host = Callable[[list[int], int, Cost], Lengths]
"""Assigns lengths to ``RANKS`` ranks, micro-batches of so many tokens."""


def compare_trainers(data: Sequence[Data]) -> Output:
    """Compare the schedulers of Megatron-Core, and trainers with one static scheme."""
    cost, costs = Cost.from_profile(PROFILE, SCHEME), ring_costs(PROFILE, SCHEME)
    schedulers = _list_megatron()
    yield compare_megatron(data, schedulers, costs)
    for _, scheduler, one_each in schedulers:
        if not one_each:
            yield compare_small_batches(data, scheduler, costs)
    hosts = [host for host in HOSTS if _import_installed(host[1], host[0])]
    yield compare_static(data, hosts, cost)


def compare_megatron(
    data: Sequence[Data],
    schedulers: Sequence[tuple[str, Schedule, bool]],
    known: dict[int, Cost],
    shapes: Sequence[tuple[int, int]] = ((2048, 64), (512, 64)),
    draws: int = 5,
) -> Table:
    """Compare Megatron-Core's schedules with ours; ``shapes``: sequences and ranks."""
    table = Table(
        "trainer's planner | lengths | sequences × ranks | its time over ours, least | median"
        " | its CPU, median | our CPU, median",
        "{} | {} | {:,} × {} | {:.3f} | {:.3f} | {:,.0f} ms | {:,.0f} ms",
        title=f"Trainers' planners, costs of {SCHEME} in {PROFILE}, {draws} draws",
    )
    for (name, scheduler, one_each), source, shape in product(schedulers, data, shapes):
        sequences, ranks = shape
        costs = by_degree(known, ranks)
        ratios, their_ms, our_ms = [], [], []
        for seed in range(draws):
            lengths = source.draw(seed, sequences, cut=LONGEST).tolist()
            ours, ms = time_cpu(plan_groups, lengths, ranks, CAPACITY, costs, one_each=one_each)
            our_ms.append(ms)
            theirs, ms = time_cpu(scheduler, lengths, ranks)
            their_ms.append(ms)
            time_ms = schedule_ms(theirs, lengths, costs, one_each=one_each)
            ratios.append(time_ms / ours.predicted_ms)
        table.add(name, source.name, *shape, min(ratios), *map(median, (ratios, their_ms, our_ms)))
    return table


def schedule_ms(
    micro_batches: MicroBatches,
    lengths: Sequence[int],
    costs: Mapping[int, Cost],
    *,
    one_each: bool,
) -> float:
    """Time a schedule: Σ over micro-batches of the slowest rank (ms).

    ``one_each``: a rank runs its samples one after another, each on all ranks that have it.
    """
    total = 0.0
    for of_ranks in micro_batches:
        sharing = Counter(i for ids in of_ranks for i in ids)
        times = []
        for ids in of_ranks:
            parts = [[i] for i in ids] if one_each else [ids]
            times.append(
                sum(costs[sharing[p[0]]].micro_batch_ms([lengths[i] for i in p]) for p in parts)
            )
        total += max(times)
    return total


def compare_small_batches(
    data: Sequence[Data],
    scheduler: Schedule,
    known: dict[int, Cost],
    batches: int = 480,
    ring_ms: Sequence[float] = (0.4, 5.0, 25.0),
) -> Table:
    """Compare small and nearly full batches with Megatron's rule, at several ring steps.

    ``ring_ms``: milliseconds that a micro-batch costs more for each further rank of its group.
    """
    table = Table(
        "a further rank costs | slower than its rule | least | median | mean | gap, median"
        " | our CPU, median",
        "{:g} ms | {} | {:.3f} | {:.3f} | {:.3f} | {:.1%} | {:,.0f} ms",
        title=f"{batches} small and nearly full batches, Megatron's rule over ours",
    )
    for more_ms in ring_ms:
        ratios, gaps, times = [], [], []
        for ranks, lengths in _draw_batches(data, batches):
            costs = by_degree(known, ranks)
            first_ms = costs[1].c
            costs = {d: Cost(k.a, k.b, first_ms + more_ms * (d - 1)) for d, k in costs.items()}
            theirs = scheduler(lengths, ranks)
            groups = _list_groups(theirs)
            ours, ms = time_cpu(plan_groups, lengths, ranks, CAPACITY, costs, known=groups)
            times.append(ms)
            gaps.append(ours.gap)
            time_ms = schedule_ms(theirs, lengths, costs, one_each=False)
            ratios.append(time_ms / ours.predicted_ms)
        slower = sum(ratio < 1 - 1e-9 for ratio in ratios)
        figures = min(ratios), median(ratios), fmean(ratios), median(gaps), median(times)
        table.add(more_ms, slower, *figures)
    return table


def _list_groups(micro_batches: MicroBatches) -> list[list[tuple[int, list[int]]]]:
    """Return groups as (degree, positions): neighbors with the same samples are one."""
    known: list[list[tuple[int, list[int]]]] = []
    for of_ranks in micro_batches:
        known.append([])
        for members in of_ranks:
            if known[-1] and known[-1][-1][1] == list(members):
                known[-1][-1] = (known[-1][-1][0] + 1, list(members))
            else:
                known[-1].append((1, list(members)))
    return known


def _draw_batches(data: Sequence[Data], batches: int) -> Iterator[tuple[int, list[int]]]:
    """Draw ranks and lengths: up to two sequences a rank, or tokens near what ranks hold."""
    rng = np.random.default_rng(0)
    for number in range(batches):
        ranks = int(rng.choice([4, 8, 16, 32]))
        drawn = rng.choice(data[number % len(data)].lengths, 600)
        lengths = np.minimum(drawn, min(LONGEST, CAPACITY * ranks))
        if number % 4 < 2:
            lengths = lengths[: int(rng.integers(1, 2 * ranks + 1))]
        else:
            tokens = int(rng.integers(1, 4)) * ranks * CAPACITY * rng.uniform(0.93, 1.02)
            lengths = lengths[: max(1, int(np.searchsorted(np.cumsum(lengths), tokens)))]
            if rng.random() < 0.5:
                lengths = np.append(lengths, 128)
        yield ranks, lengths.tolist()


def _list_megatron() -> list[tuple[str, Schedule, bool]]:
    """List Megatron-Core's schedulers: name, schedule, whether samples run one by one."""
    module = _import_installed("megatron.core.datasets.data_schedule", "megatron-core")
    if module is None:
        return []
    schedules: list[tuple[str, Schedule, bool]] = []
    if hybrid := getattr(module, "BalancedCPScheduler", None):
        schedules.append(("Megatron, hybrid", partial(_hybrid, hybrid), True))
    for key, scheduler in getattr(module, "scheduler_map", {}).items():
        if getattr(key, "value", key) == "default_dynamic_cp":
            schedules.append(("Megatron, dynamic", partial(_dynamic, scheduler), False))
    return schedules


def _hybrid(scheduler: Any, lengths: list[int], ranks: int) -> MicroBatches:
    class Group:
        def size(self) -> int:
            return ranks

    _, ids = scheduler(CAPACITY, Group()).get_groups_and_subsamples(list(enumerate(lengths)), None)
    places: MicroBatches = ids
    return places


def _dynamic(scheduler: Any, lengths: list[int], ranks: int) -> MicroBatches:
    schedule = scheduler(CAPACITY, 1, ranks, None)
    places: MicroBatches = schedule.get_groups_and_subsamples(list(enumerate(lengths)))
    return places


def _import_installed(name: str, package: str) -> ModuleType | None:
    """Import a trainer's module; None, and a printed line, if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        print(f"{package} is not installed: left out\n")
        return None


def compare_static(
    data: Sequence[Data],
    hosts: Sequence[tuple[str, str, Host, bool]],
    cost: Cost,
    contexts: Sequence[int] = (4096, 8192, 32768),
    tokens: Sequence[int] = (500_000, 4_000_000),
) -> Table:
    """Compare trainers with one static scheme, as many sequences on all ranks."""
    table = Table(
        "trainer's planner | lengths | context | tokens a step | its time over ours | our gap"
        " | its CPU | our CPU",
        "{} | {} | {:,} | {:,} | {:.3f} | {:.2%} | {:,.0f} ms | {:,.0f} ms",
        title=f"Trainers with one static scheme, {RANKS} ranks",
    )
    for (name, _, host, lockstep), source, context, total in product(hosts, data, contexts, tokens):
        drawn = source.draw_tokens(0, total, 4 * total // 100, cut=context)
        lengths = drawn[: len(drawn) // RANKS * RANKS].tolist()
        capacity = max(context, CAPACITY)
        execution: Any = "lockstep" if lockstep else "uniform"
        ours, our_ms = time_cpu(balance, lengths, RANKS, capacity, cost, execution=execution)
        room = context if host is _trl else capacity
        theirs, their_ms = time_cpu(host, lengths, room, cost)
        ratio = step_ms(theirs, cost, lockstep=lockstep) / ours.predicted_ms
        cells: Cells = ratio, ours.gap, their_ms, our_ms
        table.add(name, source.name, context, sum(lengths), *cells)
    return table


def step_ms(lengths: Lengths, cost: Cost, *, lockstep: bool) -> float:
    """Time a step: the slowest rank, with ``lockstep`` of each micro-batch by itself."""
    times = [[cost.micro_batch_ms(micro) if micro else 0.0 for micro in of] for of in lengths]
    if not lockstep:
        return max(sum(of_rank) for of_rank in times)
    micro_steps = max(len(of_rank) for of_rank in times)
    return sum(max(of[k] if k < len(of) else 0.0 for of in times) for k in range(micro_steps))


def _verl(lengths: list[int], capacity: int, cost: Cost) -> Lengths:
    """Call what ``RayPPOTrainer`` and the workers do: ranks first, then each rank's micro-batches,
    as many on all ranks."""
    del cost
    import torch

    balancing = import_module("verl.utils.seqlen_balancing")
    work = balancing.calculate_workload(torch.tensor(lengths)).tolist()
    of_ranks = balancing.get_seqlen_balanced_partitions(work, k_partitions=RANKS, equal_size=True)
    rows = [[torch.zeros(lengths[i], dtype=torch.int8) for i in of_rank] for of_rank in of_ranks]
    count = 1
    while True:
        packed: Lengths = []
        for tokens in rows:
            ids = torch.nested.as_nested_tensor(tokens, layout=torch.jagged)
            batch = import_module("tensordict").TensorDict(
                {"input_ids": ids}, batch_size=[len(tokens)]
            )
            parts = balancing.rearrange_micro_batches(batch, capacity, min_num_micro_batch=count)[1]
            packed.append([[len(tokens[i]) for i in part] for part in parts])
        most = max(len(parts) for parts in packed)
        if min(len(parts) for parts in packed) == most:
            return packed
        count = most


def _trl(lengths: list[int], context: int, cost: Cost) -> Lengths:
    """Windows of ``pack_dataset``, to ranks in the order of a shuffled sampler."""
    del cost
    ids = {"input_ids": [np.zeros(length, np.int8) for length in lengths]}
    samples = import_module("datasets").Dataset.from_dict(ids)
    windows = import_module("trl.data_utils").pack_dataset(samples, context, "bfd")["seq_lengths"]
    order = np.random.default_rng(0).permutation(len(windows))
    return [[list(windows[k]) for k in order[rank::RANKS]] for rank in range(RANKS)]


def _hugging_face(lengths: list[int], capacity: int, cost: Cost) -> Lengths:
    """``BatchRebalanceSampler`` with the least accumulation for which every padded run fits."""
    del cost
    sampler: Any = import_module("transformers.trainer_pt_utils").BatchRebalanceSampler
    accumulation = max(1, -(-sum(lengths) // (capacity * RANKS)))
    while True:
        settings = (lengths, len(lengths), RANKS, accumulation)
        of_all = sampler(*settings)._assign(list(range(len(lengths))), lengths)
        padded = [
            [[max(lengths[i] for i in run)] * len(run) for run in of_rank] for of_rank in of_all
        ]
        if max(sum(run) for of_rank in padded for run in of_rank) <= capacity:
            return padded
        accumulation += 1


def _nemo_rl(lengths: list[int], capacity: int, cost: Cost) -> Lengths:
    """Bins of its default packer, to ranks in turn, as ``shard_by_batch_size`` assigns them."""
    del cost
    module = import_module("nemo_rl.data.packing.algorithms")
    packer = module.get_packer("modified_first_fit_decreasing", capacity, False, RANKS, RANKS)
    with redirect_stdout(io.StringIO()):
        bins = packer.pack(lengths)
    return [[[lengths[i] for i in micro] for micro in bins[rank::RANKS]] for rank in range(RANKS)]


def _torchtitan(lengths: list[int], capacity: int, cost: Cost) -> Lengths:
    """Rows of its chat data set, which each rank packs from its samples and pads."""
    del cost
    data_set: Any = import_module("torchtitan.hf_datasets.text_datasets").ChatDataset

    class OfRank(data_set):  # type: ignore[misc]
        def __init__(self, samples: Sequence[int]) -> None:
            self._data, self.seq_len, self.infinite = samples, capacity, False
            self._eos_id = self._sample_idx = 0
            self._dataset_id = ""
            for name in ("inputs_buffer", "labels_buffer", "positions_buffer", "pending_input_ids"):
                setattr(self, f"_{name}", list[int]())

        def _tokenize_sample(self, sample: int) -> tuple[list[int], list[int]]:
            return [1] * sample, [1] * sample

    logging.disable(logging.WARNING)  # it logs the end of each rank's samples
    packed: Lengths = []
    for rank in range(RANKS):
        rows = [row["positions"].numpy() for row, _ in OfRank(lengths[rank::RANKS])]
        starts = [np.append(np.flatnonzero(positions == 0), capacity) for positions in rows]
        packed.append([np.diff(of_row).tolist() for of_row in starts])
    return packed


def _ms_swift(lengths: list[int], capacity: int, cost: Cost) -> Lengths:
    """Windows of its packed data set, to ranks in the order of its sampler."""
    del cost
    packing = import_module("swift.dataset.packing")
    windows: list[list[int]] = []
    rest: list[tuple[int, int]] = []
    size = packing.PackingDataset.PACKING_BATCH_SIZE
    for start in range(0, len(lengths), size):
        rest += list(enumerate(lengths[start : start + size], start))
        last = start + size >= len(lengths)
        packed, rest = packing.calculate_matched_group(rest, capacity, is_finished=last)
        windows += [[length for _, length in window] for window in packed]
    torch: Any = import_module("torch")
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0)).tolist()
    return [[windows[k] for k in order[rank::RANKS]] for rank in range(RANKS)]


def _slime(lengths: list[int], capacity: int, cost: Cost) -> Lengths:
    model = SchemeModel(Scheme(), Latency(cost.a, cost.b, cost.c), capacity)
    batch = Batch(0, tuple(range(len(lengths))), tuple(lengths), sum(lengths))
    _, by_rank = first_fit_split(batch, RANKS, model)
    return [[[lengths[i] for i in micro] for micro in of_rank] for of_rank in by_rank]


HOSTS: tuple[tuple[str, str, Host, bool], ...] = (
    ("verl", "verl", _verl, True),
    ("TRL, best fit", "trl", _trl, True),
    ("Hugging Face, rebalancing", "transformers", _hugging_face, False),
    ("torchtitan, chat data", "torchtitan.hf_datasets.text_datasets", _torchtitan, True),
    ("ms-swift, packing", "swift.dataset.packing", _ms_swift, False),
    ("slime", "seqplan", _slime, False),
    ("NeMo-RL, FFD modified", "nemo_rl.data.packing.algorithms", _nemo_rl, True),
)
"""Name, what must be installed, and whether ranks wait for each other after every micro-batch: they
do under FSDP2, and for ``SFTTrainer``'s metrics."""
