"""The analytic model's times next to others: Megatron's dynamic context parallelism, an H200.

Megatron's published benchmark is replayed with ``--stack eager``. The lengths are those of its
benchmark (drawn by NumPy from its seed), and both schedulers' decisions are made again; each
micro-batch lasts as long as its slowest group. Measured were iterations 11 to 30.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.settings import Data
from benchmarks.tables import RESULTS, Output, Table
from seqplan import Profile, Scheme
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.estimate import Load, estimate
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.planner.systems.megatron_packing import next_micro_batch

SOURCE = "Megatron-LM 10ce7bc, examples/dynamic_context_parallel/README.md and benchmark_dcp.sh"

PUBLISHED_MS = {
    4: (195.269, 151.906),
    8: (220.119, 155.850),
    16: (226.775, 187.125),
    32: (286.206, 208.088),
    64: (271.988, 181.912),
}
"""Trimmed means of an iteration by GPUs, four a node: packed with rings of 4, and with dynamic
groups. The device is not named: H100 is assumed, as A100 would be 37 % slower than published."""

SIZES = ModelSizes.from_mapping(
    {"hidden": 2048, "layers": 12, "heads": 16, "kv_heads": 16, "ffn": 8192, "vocab": 131072}
    | {"ungated": True, "tied": True, "positions": 8192}
)
RING, TOKENS_OF_RANK, MICRO_BATCHES, PADDED = 4, 2048, 8, 16
"""Ranks of the fixed rings, tokens of a rank at most, sequences of a group, multiple of padding."""

ITERATIONS = range(10, 30)


@dataclass(frozen=True)
class Replayed:
    """Predicted iterations (ms), packed and dynamic, with what GPUs are published to take."""

    gpus: int
    packed_ms: float
    dynamic_ms: float

    @property
    def errors(self) -> tuple[float, float]:
        """Return predicted over published, less one, of both."""
        packed, dynamic = PUBLISHED_MS[self.gpus]
        return self.packed_ms / packed - 1, self.dynamic_ms / dynamic - 1


def compare_dynamic_cp(data: Sequence[Data]) -> Output:
    """Compare predicted with published iterations; the lengths are drawn, not of ``data``."""
    replayed = [replay(gpus) for gpus in PUBLISHED_MS]
    time = "{:.0f} / {:.0f} ({:+.0%})"
    table = Table(
        "GPUs | packed, ms | dynamic, ms | gain",
        " | ".join(["{}", time, time, "{:.2f} / {:.2f}"]),
        title=f"Dynamic context parallelism, predicted / published ({SOURCE})",
    )
    for of in replayed:
        published = PUBLISHED_MS[of.gpus]
        times = zip((of.packed_ms, of.dynamic_ms), published, of.errors, strict=True)
        gains = of.packed_ms / of.dynamic_ms, np.divide(*published)
        table.add(of.gpus, *(figure for cell in times for figure in cell), *gains)
    yield table
    errors = [error for of in replayed for error in of.errors]
    yield f"rms {np.sqrt(np.mean(np.square(errors))):.1%}"


def draw_lengths() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draw the lengths of its mock data set (tokens), padded."""
    drawn = np.random.RandomState(0).lognormal(np.log(1024) - 1.5**2 / 2, 1.5, 1_000_000)
    lengths = np.clip(drawn, 128, 8192).astype(np.int64)
    return -(-lengths // PADDED) * PADDED


def replay(gpus: int) -> Replayed:
    """Replay the measured iterations on so many GPUs."""
    nodes = max(1, gpus // 4)
    cluster = ClusterHardware(DEVICES["h100-80gb"], nodes, 4)
    deployment = Deployment(cluster=cluster, sizes=SIZES, stack="eager", loss="whole")
    replicas, lengths = gpus // RING, draw_lengths()
    sequences = MICRO_BATCHES * replicas
    packed, dynamic = [], []
    for iteration in ITERATIONS:
        batch = lengths[iteration * sequences : (iteration + 1) * sequences].tolist()
        of_packs = [_time_ms(deployment, RING, pack) for pack in pack_in_order(batch, replicas)]
        steps = [of_packs[i : i + replicas] for i in range(0, len(of_packs), replicas)]
        packed.append(sum(map(max, steps)))
        dynamic.append(
            sum(
                max(_time_ms(deployment, ring, group) for ring, group in groups)
                for groups in _form_groups(batch, gpus)
            )
        )
    terms = estimate(
        deployment, Scheme(ring=RING), Load(seq_len=8192, batch=sequences, micro_batch=1)
    ).terms_ms
    step_ms = terms["parameter sync"] + terms["optimizer"]
    return Replayed(gpus, _trim_mean(packed) + step_ms, _trim_mean(dynamic) + step_ms)


def pack_in_order(batch: Sequence[int], replicas: int) -> list[list[int]]:
    """Pack sequences in their order up to the ring's tokens; the packs are a multiple of replicas.

    Where they are not, the last sequences of the last packs get packs of one each.
    """
    packs: list[list[int]] = [[]]
    for length in batch:
        if sum(packs[-1]) + length > RING * TOKENS_OF_RANK:
            packs.append([])
        packs[-1].append(length)
    missing, last = -len(packs) % replicas, len(packs) - 1
    while missing:
        if len(packs[last]) > 1:
            packs.append([packs[last].pop()])
            missing -= 1
        else:
            last -= 1
    return packs


def _form_groups(batch: Sequence[int], gpus: int) -> Iterator[list[tuple[int, list[int]]]]:
    """Yield the groups of each micro-batch: ring and lengths."""
    schemes = [Scheme(ring=2**k) for k in range(gpus.bit_length())]
    left = sorted(range(len(batch)), key=lambda i: (-batch[i], i))
    while left:
        groups, left = next_micro_batch(batch, left, schemes, gpus, TOKENS_OF_RANK)
        yield [(group.scheme.ring, [batch[i] for i in group.positions]) for group in groups]


def _time_ms(deployment: Deployment, ring: int, lengths: Sequence[int]) -> float:
    return float(sum(stage_terms(deployment, Scheme(ring=ring), lengths).values()))


def _trim_mean(times: Sequence[float]) -> float:
    """Average without the largest and the smallest tenth, as published."""
    cut = len(times) // 10
    return float(np.mean(sorted(times)[cut : len(times) - cut]))


MEASURED = RESULTS / "measured" / "llama3-8b-h200.json"
MEASURED_AT = (2048, 4096, 8192, 16384, 32768)
STACKS = ("eager", "compiled", "megatron")


def compare_stacks(data: Sequence[Data]) -> Output:
    """Compare derived times of an H200 with those of its measured profile, by stack and length.

    Scheme tp1 of llama3-8b, one sequence in a micro-batch, the loss whole as in the measurement.
    """
    measured = Profile.load(MEASURED)
    modes = [mode.name for mode in measured.modes]
    table = Table(
        " | ".join(["stack | mode", *(f"{length:,} tokens" for length in MEASURED_AT)]),
        "{} | {}" + " | {:.2f}" * len(MEASURED_AT),
    )
    for stack, mode in product(STACKS, modes):
        deployment = Deployment(
            cluster=ClusterHardware(DEVICES["h200-141gb"], 1, 8),
            sizes=ModelSizes.from_mapping(MODELS["llama3-8b"]),
            stack=stack,
            loss="whole",
        )
        document = derive_profile(deployment, [Scheme()], name="derived", modes=modes)
        derived = Profile.from_document(document, "the derived profile")
        ratios = (
            _ms(derived, mode, length) / _ms(measured, mode, length) for length in MEASURED_AT
        )
        table.add(stack, mode, *ratios)
    yield table


def _ms(profile: Profile, mode: str, length: int) -> float:
    return profile.keep_modes([mode]).by_scheme[Scheme()].latency.micro_batch_ms([length])
