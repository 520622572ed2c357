"""A whole iteration of equal sequences: time by term, FLOP/s, model FLOPs utilisation, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seqplan.plans.scheme import Scheme
from seqplan.profiler.analytic.kernels import memory_ms
from seqplan.profiler.analytic.links import placement, ring_collective_ms, shift_ms
from seqplan.profiler.analytic.memory import (
    PARAMETER_BYTES,
    peak_bytes,
    usable_bytes,
)
from seqplan.profiler.analytic.terms import Deployment, stage_terms
from seqplan.profiler.model_sizes import ModelSizes
from seqplan.profiler.scheme_rules import scheme_problem

OPTIMIZER_MOVED_BYTES = 30
"""Per parameter of a shard: master and moments read and written, gradient read, bf16 written."""


LARGEST_LOAD = {"seq_len": 10**9, "batch": 10**9, "micro_batch": 4096}
"""Tokens of a sequence, sequences of an iteration and of a micro-batch."""


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
    the causal half of attention only.
    """

    scheme: Scheme
    dp: int
    micro_batches: int
    iteration_ms: float
    tokens_per_s: float
    tflops_per_gpu: float
    mfu: float
    terms_ms: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    usable_bytes: float

    @property
    def peak_bytes(self) -> float:
        """Bytes on the fullest GPU."""
        return sum(self.memory_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether they are there."""
        return self.peak_bytes <= self.usable_bytes


def problem(deployment: Deployment, scheme: Scheme, load: Load) -> str | None:
    """Say why the cluster cannot run this load on this scheme; None when it can (memory apart)."""
    gpus = deployment.cluster.gpus
    if gpus % scheme.gpus:
        return f"its {scheme.gpus} GPUs do not divide the cluster's {gpus}"
    if reason := scheme_problem(scheme, deployment.sizes.shape):
        return reason
    if deployment.zero == 3 and scheme.pp > 1:
        return "ZeRO-3 gathers every layer on every rank; use it with pp = 1"
    if load.seq_len < 2 * scheme.stage_gpus:
        return f"sequences of {load.seq_len} tokens are too short for {scheme.stage_gpus} GPUs"
    dp = gpus // scheme.gpus
    if load.batch % (dp * load.micro_batch):
        return f"batch {load.batch} is no multiple of dp · micro-batch = {dp} · {load.micro_batch}"
    return None


def estimate(deployment: Deployment, scheme: Scheme, load: Load) -> Estimate:
    """Time an iteration of 1F1B on dp = GPUs / scheme replicas; ``ValueError`` for a ``problem``.

    (m + pp − 1) · stage for m micro-batches, activations sent between stages, one exchange of
    gradients and parameters that nothing hides (ZeRO 2 scatters gradients every micro-batch), and
    the optimizer.
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
    if scheme.pp > 1:
        terms["pipeline bubble"] = (scheme.pp - 1) * sum(stage.values())
        payload = 2 * tokens * sizes.hidden / (scheme.sp * scheme.tp)
        sent = float(shift_ms(cluster, groups["pp"], payload))
        terms["pipeline sends"] = 2 * (count + scheme.pp - 1) * sent
    held = sizes.stored_parameters(scheme.pp) / (scheme.tp * scheme.pp)
    if deployment.zero < 3:
        scattered = float(
            ring_collective_ms(cluster, groups["replica"], deployment.gradient_bytes * held)
        )
        gathered = float(ring_collective_ms(cluster, groups["replica"], PARAMETER_BYTES * held))
        times = count if deployment.zero == 2 else 1
        terms["parameter exchange"] = times * scattered + gathered
    shard = held / groups["replica"].size
    terms["optimizer"] = float(memory_ms(cluster.hardware, OPTIMIZER_MOVED_BYTES * shard))
    iteration_ms = sum(terms.values())
    needed = model_flops(sizes, load.seq_len) * load.batch
    per_gpu = needed / (iteration_ms / 1e3) / cluster.gpus
    return Estimate(
        scheme=scheme,
        dp=dp,
        micro_batches=count,
        iteration_ms=iteration_ms,
        tokens_per_s=load.batch * load.seq_len / (iteration_ms / 1e3),
        tflops_per_gpu=per_gpu / 1e12,
        mfu=per_gpu / cluster.peak_flops,
        terms_ms={name: value for name, value in terms.items() if value > 0},
        memory_bytes=peak_bytes(deployment, scheme, dp, tokens),
        usable_bytes=usable_bytes(cluster.hardware.memory_bytes),
    )


def model_flops(sizes: ModelSizes, length: int, *, causal: bool = True) -> float:
    """Count forward + backward FLOPs of a sequence: 6 per parameter in a product and token, and
    12·layers·(heads·head_dim)·l² of attention, half of it with the causal mask."""
    products = sizes.layers * sizes.layer_parameters + sizes.vocab * sizes.hidden
    attention = 12.0 * sizes.layers * sizes.attention_width * length**2
    return 6.0 * products * length + attention * (0.5 if causal else 1.0)
