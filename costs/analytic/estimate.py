"""A whole iteration of equal sequences: time by term, FLOP/s, model FLOPs utilisation, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.attention import AttentionMask
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.experts import Replicated, block_problem, split_parameters
from seqplan.costs.analytic.gpus.kernels import memory_ms
from seqplan.costs.analytic.gpus.links import (
    placement,
    rank_latency_ms,
    ring_collective_ms,
    shift_ms,
)
from seqplan.costs.analytic.memory import (
    PARAMETER_BYTES,
    count_host_bytes,
    count_host_state_bytes,
    peak_bytes,
    usable_bytes,
    verdict,
)
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profiled_scheme import label_entry
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.scheme import Scheme

OPTIMIZER_MOVED_BYTES = 30
"""Per parameter of a shard: master and moments read and written, gradient read, bf16 written."""

HOST_STATES_GB_S = 25.0
"""Rate at which an optimizer on the host reads and writes the states of one GPU: assumed."""


LARGEST_LOAD = {"seq_len": 10**9, "micro_batch": 4096, "batch": 10**9}
"""Tokens of a sequence, sequences of a micro-batch and of an iteration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """``batch`` sequences of ``seq_len`` tokens an iteration, ``micro_batch`` of them at a time."""

    seq_len: int
    batch: int
    micro_batch: int = 1

    def __post_init__(self) -> None:
        for name, most in LARGEST_LOAD.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from 1 to {most:,}, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One iteration. ``terms_ms`` add up to ``iteration_ms``; ``memory_bytes`` to ``peak_bytes``.

    ``tflops_per_gpu``, ``mfu``: of the FLOPs that the model needs, without recomputation and with
    the causal half of attention only. ``host_bytes``: activations in host memory for a GPU.
    """

    scheme: Scheme
    expert_parallel: int
    dp: int
    micro_batches: int
    iteration_ms: float
    tokens_per_s: float
    tflops_per_gpu: float
    mfu: float
    terms_ms: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    capacity_bytes: float
    host_bytes: float
    host_capacity_bytes: float

    @property
    def label(self) -> str:
        """Its scheme with its degree of expert parallelism above 1."""
        return label_entry(self.scheme, self.expert_parallel)

    @property
    def usable_bytes(self) -> float:
        """Usable part of the GPU's memory."""
        return usable_bytes(self.capacity_bytes)

    @property
    def peak_bytes(self) -> float:
        """Bytes on the fullest GPU."""
        return sum(self.memory_bytes.values())

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` (they may be there) or ``does not fit``, also into host memory."""
        if self.host_bytes > self.host_capacity_bytes:
            return "does not fit"
        return verdict(self.peak_bytes, self.capacity_bytes)

    @property
    def fits(self) -> bool:
        """Whether they are there or may be."""
        return self.verdict != "does not fit"


def problem(deployment: Deployment, scheme: Scheme, load: Load) -> str | None:
    """Describe why the cluster cannot run this load, memory apart; None when it can."""
    shape, cluster = deployment.sizes.shape, deployment.cluster
    gpus = cluster.gpus
    if gpus % scheme.gpus:
        return f"its {scheme.gpus} GPUs do not divide the cluster's {gpus}"
    if reason := scheme_problem(
        scheme, shape, gpus_per_node=cluster.gpus_per_node, equal_stages=False
    ):
        return reason
    if reason := block_problem(deployment, scheme):
        return reason
    if deployment.zero == 3 and scheme.pp > 1:
        return "ZeRO-3 gathers every layer on every rank; use it with pp = 1"
    if load.seq_len < 2 * scheme.stage_gpus > 2:
        return f"{load.seq_len} tokens a sequence are too few for {scheme.stage_gpus} GPUs"
    stages = scheme.pp * deployment.virtual_stages
    # Embedding and head may stand for a layer each, as in Llama 3's 126 on 128 stages.
    if scheme.pp > 1 and stages > deployment.sizes.layers + 2:
        return (
            f"{stages} stages (pp · virtual stages) are more than the {deployment.sizes.layers} "
            "layers, embedding and head"
        )
    if deployment.optimizer_shards % (scheme.tp * scheme.pp):
        return f"optimizer_shards {deployment.optimizer_shards} is no multiple of its tp · pp"
    dp = gpus // scheme.gpus
    if load.batch % (dp * load.micro_batch):
        return f"batch {load.batch} is no multiple of dp · micro-batch = {dp} · {load.micro_batch}"
    return None


def estimate(deployment: Deployment, scheme: Scheme, load: Load) -> Estimate:
    """Time an iteration of 1F1B on dp = GPUs / scheme replicas; ``ValueError`` for a ``problem``.

    (m + (pp − 1)/v) · stage for m micro-batches and v virtual stages, activations sent between
    stages (next to kernels where stages are interleaved, but for the first and last), the sync
    of gradients and parameters, and the optimizer. If pp·v does not divide the layers the
    longest stage counts.
    """
    if reason := problem(deployment, scheme, load):
        raise ValueError(f"{scheme}: {reason}")
    cluster, sizes = deployment.cluster, deployment.sizes
    dp = cluster.gpus // scheme.gpus
    count = load.batch // (dp * load.micro_batch)
    tokens = load.micro_batch * load.seq_len
    stage = {
        name: float(value)
        for name, value in stage_terms(
            deployment, scheme, [load.seq_len] * load.micro_batch, dp
        ).items()
    }
    terms = {name: value * count for name, value in stage.items()}
    groups = placement(scheme, dp)
    stage_ms = sum(stage.values())
    if scheme.pp > 1:
        virtual = deployment.virtual_stages
        terms["pipeline bubble"] = (scheme.pp - 1) / virtual * stage_ms
        payload = 2 * tokens * sizes.hidden / (scheme.sp * scheme.tp)
        shift = float(shift_ms(cluster, groups["pp"], payload))
        # Interleaved stages send next to the next stage's kernels, but when filling and draining.
        steady = count if virtual == 1 else 0
        terms["pipeline sends"] = 2 * (steady + scheme.pp - 1) * shift
    share = deployment.stage_layers(scheme.pp) / sizes.layers
    experts = share * sizes.expert_parameters
    dense = share * sizes.layers_parameters - experts
    dense += (sizes.count_stored_parameters(scheme.pp) - sizes.layers_parameters) / scheme.pp
    held = split_parameters(deployment, scheme, dp, dense, experts)
    if deployment.zero < 3:
        terms["parameter sync"] = _sync_ms(deployment, scheme, held, count, stage_ms)
    shard = sum(part.parameters / part.group.size for part in held)
    terms["optimizer"] = _optimizer_ms(deployment, shard, count)
    ranks = deployment.optimizer_shards or cluster.gpus
    iteration_ms = sum(terms.values())
    needed = model_flops(sizes, load.seq_len) * load.batch
    per_gpu = needed / (iteration_ms / 1e3) / cluster.gpus
    return Estimate(
        scheme=scheme,
        expert_parallel=deployment.experts.degree,
        dp=dp,
        micro_batches=count,
        iteration_ms=iteration_ms,
        tokens_per_s=load.batch * load.seq_len / (iteration_ms / 1e3),
        tflops_per_gpu=per_gpu / 1e12,
        mfu=per_gpu / cluster.peak_flops,
        terms_ms={name: value for name, value in terms.items() if value > 0},
        memory_bytes=peak_bytes(deployment, scheme, dp, tokens),
        capacity_bytes=cluster.hardware.memory_bytes,
        host_bytes=count_host_bytes(deployment, scheme.tp, scheme.pp)
        * tokens
        / (scheme.tp * scheme.sp)
        + count_host_state_bytes(deployment) / ranks,
        host_capacity_bytes=deployment.host_memory_bytes,
    )


def _optimizer_ms(deployment: Deployment, shard: float, count: int) -> float:
    """Time the optimizer's step on ``shard`` parameters; on the host with copies both ways.

    Parameters on the host go to the device in forward and backward of ``count`` micro-batches.
    """
    hardware = deployment.cluster.hardware
    if not deployment.offload_optimizer:
        return float(memory_ms(hardware, OPTIMIZER_MOVED_BYTES * shard))
    copied = (deployment.gradient_bytes + PARAMETER_BYTES) * shard / (hardware.host_gb_s * 1e6)
    if deployment.offload_parameters:
        copied += (2 * count - 1) * PARAMETER_BYTES * shard / (hardware.host_gb_s * 1e6)
    return copied + OPTIMIZER_MOVED_BYTES * shard / (HOST_STATES_GB_S * 1e6)


def _sync_ms(
    deployment: Deployment,
    scheme: Scheme,
    held: Sequence[Replicated],
    count: int,
    stage_ms: float,
) -> float:
    """Time the exposed sync of gradients and parameters that a rank holds, experts' by themselves.

    ``exposed``: gradients are scattered and parameters gathered after all backward; ZeRO 2
    scatters after every micro-batch. ``hidden``: gradients are summed on the rank (also under ZeRO
    2) and scattered next to the last backward, parameters gathered next to the first forward; what
    takes longer is exposed, and so are the part of the last layer next to which nothing runs, and
    the latency by ranks of each layer's two collectives. Copies of a shard sum their gradients.
    """
    cluster, layers = deployment.cluster, deployment.sizes.layers
    scattered = gathered = ranks_ms = 0.0
    for part in held:
        group, copies = part.group, part.copies
        gradients = deployment.gradient_bytes * part.parameters
        scattered += float(ring_collective_ms(cluster, group, gradients))
        scattered += 2 * float(ring_collective_ms(cluster, copies, gradients / group.size))
        gathered += float(ring_collective_ms(cluster, group, PARAMETER_BYTES * part.parameters))
        ranks_ms += rank_latency_ms(cluster, group) + rank_latency_ms(cluster, copies)
    if deployment.sync == "exposed":
        scatters = count if deployment.zero == 2 else 1
        return scatters * (scattered + ranks_ms) + gathered + ranks_ms
    return 2 * deployment.stage_layers(scheme.pp) * ranks_ms + sum(
        max(moved - share * stage_ms, moved / layers)
        for moved, share in ((scattered, 2 / 3), (gathered, 1 / 3))
    )


def model_flops(sizes: ModelSizes, lengths: npt.ArrayLike, *, causal: bool = True) -> float:
    """Count forward + backward FLOPs of sequences: 6 per parameter in a product and token, and
    12·layers·(heads·head_dim)·l² of attention, half of it with the causal mask, and less in layers
    of a window or chunks. Recurrences of linear attention and states are not counted."""
    tokens = np.atleast_1d(np.asarray(lengths, dtype=np.float64))
    products = sizes.active_parameters + sizes.vocab * sizes.hidden
    special = sizes.architecture
    full = sizes.attending_layers - special.window_layers - special.chunk_layers
    pairs = 0.0  # of queries and keys, over all layers
    for mask, layers in (
        (AttentionMask(), full),
        (AttentionMask(window=special.window), special.window_layers),
        (AttentionMask(chunk=special.chunk), special.chunk_layers),
    ):
        keys = mask.seen(tokens) if causal or mask.reach else tokens
        pairs += layers * float(tokens @ keys)
    return 6.0 * products * float(tokens.sum()) + 12.0 * sizes.attention_width * pairs
