"""Trainers with one static scheme and ``seqplan.balance``, each by its code, on the same lengths.

verl deals a batch to ranks by Karmarkar-Karp and then packs each rank's part; TRL packs windows of
the context by best fit, which reach ranks as they come; Hugging Face's batch rebalancing cuts the
sorted sequences into runs, each padded to its longest; torchtitan packs each rank's samples in
order into rows, padded to the context; ms-swift packs 1,000 samples at a time into windows, which
reach ranks in a shuffled order. slime is not on PyPI: its rule as seqplan's
comparison has it. Nor is NeMo-RL: it takes part if its checkout is on PYTHONPATH.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan import Cost, balance
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.batches.batch import Batch
from seqplan.planner.systems.trainers import first_fit_split
from seqplan.plans.scheme import Scheme

CONTEXTS, TOKENS, RANKS = (4096, 8192, 32768), (500_000, 4_000_000), 64
LEAST_CAPACITY = 8192

Lengths = list[list[list[int]]]
"""Lengths by rank and micro-batch, as they are computed."""

Host = Callable[[list[int], int, Cost], Lengths]
"""Deals lengths to ``RANKS`` ranks, micro-batches of so many tokens."""


def run(data: Sequence[Data], cost: Cost) -> None:
    """Print a table of the trainers that are installed."""
    rows = []
    for name, package, host, lockstep in _HOSTS:
        try:
            import_module(package)
        except ImportError:
            print(f"{name} is not installed: left out\n")
            continue
        for source in data:
            for context in CONTEXTS:
                for tokens in TOKENS:
                    rows.append(_row(name, host, source, context, tokens, cost, lockstep=lockstep))
    print(f"### Trainers with one static scheme, {RANKS} ranks\n")
    head = ["trainer's planner", "lengths", "context", "tokens a step", "its time over ours"]
    print(markdown([*head, "our gap", "its CPU", "our CPU"], rows) + "\n")


def _row(
    name: str, host: Host, source: Data, context: int, tokens: int, cost: Cost, *, lockstep: bool
) -> list[str]:
    lengths = _drawn(source, context, tokens)
    capacity = max(context, LEAST_CAPACITY)
    began = time.process_time()
    ours = balance(lengths, RANKS, capacity, cost, execution="lockstep" if lockstep else "uniform")
    planned = time.process_time()
    theirs = host(lengths, capacity if host is not _trl else context, cost)
    their_cpu = time.process_time() - planned
    ratio = step_ms(theirs, cost, lockstep=lockstep) / ours.predicted_ms
    return [
        name,
        source.name,
        f"{context:,}",
        f"{sum(lengths):,}",
        f"{ratio:.3f}",
        f"{ours.gap:.2%}",
        f"{1000 * their_cpu:,.0f} ms",
        f"{1000 * (planned - began):,.0f} ms",
    ]


def _drawn(source: Data, context: int, tokens: int) -> list[int]:
    """Draw sequences of so many tokens, as many as can be assigned to ranks evenly."""
    drawn = np.random.default_rng(0).choice(source.lengths, 4 * tokens // 100)
    lengths = np.minimum(drawn, context)
    count = int(np.searchsorted(np.cumsum(lengths), tokens)) // RANKS * RANKS
    places: list[int] = lengths[:count].tolist()
    return places


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


_HOSTS: tuple[tuple[str, str, Host, bool], ...] = (
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
