"""The trained model, its cluster and its training options, without scheme and load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.expert_parallel import ExpertParallelism
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.stacks import DEFAULT_STACK, STACKS, Stack
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.scheme_rules import expert_problem
from seqplan.plans.percent import percent
from seqplan.plans.recomputation import MODES, join_mode, split_mode
from seqplan.plans.scheme import Scheme

LOSSES = ("whole", "chunked", "fused")
"""How the loss holds logits: of all tokens at once; of ``CHUNK_ROWS`` tokens at a time, computed
again in backward; in a fused kernel, of as many tokens at a time as need the bytes of hidden
states."""

CHUNK_ROWS = 1024
"""Tokens whose logits a chunked loss holds at once, the runtime's default."""

PRECISIONS = ("bf16", "fp8", "mxfp8", "nvfp4")
"""Of the products of the layers; attention, norms, head and loss are in bf16 in all of them."""

ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0, "mxfp8": 33 / 32, "nvfp4": 9 / 16}
"""Bytes of an element that a product reads and keeps, its block's scale among them."""

SYNC_OVERLAPS = ("exposed", "hidden")
"""Sync under ZeRO 1 and 2: after all forward and backward, or next to them."""

RECOMPUTED_MODULES = (
    *("layernorm", "core_attn", "mla_up_proj", "moe_act", "mlp", "shared_experts", "moe"),
)
"""Parts of a layer that are recomputed alone, as Megatron names them: norms, the attention kernel,
what makes queries, keys and values of latent attention, the experts' activation function, a dense
feed-forward, shared experts, a whole layer of experts."""

CONTEXT_PARALLEL = ("ring", "all-gather")
"""How keys and values reach the ranks of ``ring``: passed on step by step, or gathered at once."""

FP8_GAIN = 1.8
"""How much faster products run in fp8 than in bf16, casts included: the peak is twice as high, and
less of it is reached. Between the fits of two tables: see docs/analytic-model.md. The same in
mxfp8, whose products have a scale for every 32 elements."""

FP4_SHARE = 0.55
"""Share of the ratio of both peaks by which products run faster in nvfp4 than in bf16: set by rows
of an even hash on GB200 and GB300."""


_CHOICES: dict[str, Sequence[object]] = {
    "zero": (1, 2, 3),
    "gradient_bytes": (2, 4),
    "recompute": MODES,
    "loss": LOSSES,
    "precision": PRECISIONS,
    "sync": SYNC_OVERLAPS,
    "context_parallel": CONTEXT_PARALLEL,
    "stack": tuple(STACKS),
}

_RANGES = {
    "offload_layers": (0, 1, "a share"),
    "fp8_gain": (1, 4, "a number"),
    "virtual_stages": (1, 1024, "a number"),
    "tp_overlap": (0, 1, "a share"),
}

Floats = npt.NDArray[np.float64]

NO_EXPERT_PARALLELISM = ExpertParallelism()


@dataclass(frozen=True, slots=True)
class CostTerm:
    """Time and memory of a stage that the analytic model lacks, by name.

    - ``stage_ms(deployment, scheme, lengths)``: milliseconds of forward and backward that each
      micro-batch adds on its slowest stage. ``lengths``: tokens, shape (…, sequences); result (…).
    - ``layer_bytes(deployment, tp)``: bytes per token that a layer also keeps until backward,
      before division over tp·ulysses·ring.
    """

    name: str
    stage_ms: Callable[[Deployment, Scheme, Floats], npt.ArrayLike]
    layer_bytes: Callable[[Deployment, int], float] = lambda deployment, tp: 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A model on a cluster, and how it is trained; ``ValueError`` for values that are unknown.

    - ``zero``: ZeRO stage 1, 2 or 3; ``recompute``: recomputation mode; ``loss``,
      ``precision``, ``sync``, ``context_parallel``: see the constants above.
    - ``recompute_modules``: parts of a layer that are recomputed although ``recompute`` is none, by
      Megatron's names, see ``RECOMPUTED_MODULES``.
    - ``offload_layers``: share of the layers whose activations go to host memory, of
      which each GPU has ``host_memory_bytes``.
    - ``gradient_bytes``: of a gradient's sum during a step, 4 in fp32, 2 in bf16.
    - ``fp8_gain``: of products in fp8 and mxfp8.
    - ``virtual_stages``: parts that a rank's layers are cut into (interleaved 1F1B).
    - ``tp_overlap``: share of tensor parallelism's collectives that products hide.
    - ``sequence_parallel``: whether tp splits norms and residuals by tokens too, as this runtime
      and Megatron's sequence parallelism do.
    - ``stack``: of the trainer's software, one of ``STACKS``.
    - ``optimizer_shards``: neighboring GPUs that ZeRO splits states over (hybrid ZeRO: all others
      hold copies); 0 for all GPUs.
    - ``offload_optimizer``: whether the optimizer's states are in host memory and it steps there.
    - ``offload_parameters``: whether parameters and gradients are there too, under ZeRO 3.
    - ``tiled_mlp``: whether feed-forwards run a tile of tokens at a time, and again in backward.
    - ``added_terms``: cost terms that packages add.
    - ``experts``: how experts are split over ranks and reached.
    """

    cluster: ClusterHardware
    sizes: ModelSizes
    zero: int = 1
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ()
    offload_layers: float = 0.0
    host_memory_bytes: float = 0.0
    loss: str = "whole"
    gradient_bytes: int = 4
    precision: str = "bf16"
    fp8_gain: float = FP8_GAIN
    virtual_stages: int = 1
    sync: str = "exposed"
    tp_overlap: float = 0.0
    context_parallel: str = "ring"
    sequence_parallel: bool = True
    stack: str = DEFAULT_STACK
    optimizer_shards: int = 0
    offload_optimizer: bool = False
    offload_parameters: bool = False
    tiled_mlp: bool = False
    added_terms: tuple[CostTerm, ...] = ()
    experts: ExpertParallelism = NO_EXPERT_PARALLELISM

    def __post_init__(self) -> None:
        self._check_values()
        self._check_recomputation()
        self._check_host_memory()
        self._check_device()
        if problem := expert_problem(self.experts.degree, self.sizes.shape):
            raise ValueError(problem)
        if self.stack == "eager" and self.tp_overlap:
            raise ValueError(
                f"tp_overlap {self.tp_overlap:g} contradicts stack eager, whose products and "
                "collectives run one after the other. Use compiled or megatron"
            )
        shards, gpus = self.optimizer_shards, self.cluster.gpus
        if shards < 0 or (shards and gpus % shards):
            raise ValueError(f"optimizer_shards must divide the cluster's {gpus} GPUs: {shards}")

    def _check_values(self) -> None:
        """Check each option by itself."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                listed = ", ".join(map(str, choices))
                raise ValueError(f"{name} must be one of {listed}, not {getattr(self, name)!r}")
        for name, (least, most, kind) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(
                    f"{name} must be {kind} from {least} to {most}: {getattr(self, name)!r}"
                )
        if unknown := set(self.recompute_modules) - set(RECOMPUTED_MODULES):
            known = ", ".join(RECOMPUTED_MODULES)
            raise ValueError(f"recompute_modules must be of {known}, not {min(unknown)!r}")

    def _check_recomputation(self) -> None:
        if self.recompute_modules and self.recompute != "none":
            raise ValueError(
                f"recompute_modules {','.join(self.recompute_modules)}: recompute "
                f"{self.recompute!r} must be none. Use one of both"
            )
        if self.tiled_mlp and (
            self.recompute not in ("mlp", "full") or self.sizes.architecture.expert_layers
        ):
            raise ValueError(
                f"tiled_mlp: recompute {self.recompute!r} must be mlp or full, of layers without "
                "experts. Change it, or leave tiled_mlp out"
            )

    def _check_host_memory(self) -> None:
        """Check that offloading has memory and a link of the host."""
        if self.offload_parameters and not (self.offload_optimizer and self.zero == 3):
            raise ValueError(
                "offload_parameters: needs ZeRO 3 and offload_optimizer. Use both, or leave it out"
            )
        offloading = [f"mode {self.mode}"] if self.offload_layers else []
        offloading += ["offload_optimizer"] if self.offload_optimizer else []
        if offloading and not 1 <= self.host_memory_bytes <= 1e15:
            raise ValueError(
                f"host memory of {offloading[0]}: {self.host_memory_bytes:g} bytes a GPU. "
                "State host_memory_gb in a device file, or leave "
                f"{'the mode' if self.offload_layers else 'it'} out"
            )
        hardware = self.cluster.hardware
        if offloading and not hardware.host_gb_s:
            raise ValueError(
                f"{offloading[0]}: the host link of {hardware.name} is not known. "
                "State host_gb_s in a device file"
            )

    def _check_device(self) -> None:
        """Check that the device has products of the precision."""
        hardware = self.cluster.hardware
        if self.precision != "bf16" and hardware.generation == "ampere":
            raise ValueError(
                f"precision {self.precision}: {hardware.name} has no such products. Use bf16"
            )
        if self.precision in ("mxfp8", "nvfp4") and hardware.generation != "blackwell":
            raise ValueError(
                f"precision {self.precision}: {hardware.name} has no such products. Use fp8 or bf16"
            )

    @property
    def rates(self) -> Stack:
        """Rates and launches of its stack."""
        return STACKS[self.stack]

    @property
    def product_gain(self) -> float:
        """Rate of bf16 products over that of ``Hardware.matmul_efficiency``."""
        return self.rates.products.get(self.cluster.hardware.generation, 1.0)

    @property
    def layer_product_gain(self) -> float:
        """Rate of the layers' products in their precision, likewise."""
        gains = {"fp8": self.fp8_gain, "mxfp8": self.fp8_gain}
        gains["nvfp4"] = FP4_SHARE * self.cluster.hardware.fp4_ratio
        return self.product_gain * gains.get(self.precision, 1.0)

    @property
    def mode(self) -> str:
        """The recomputation mode as profiles write it."""
        return join_mode(self.recompute, self.offload_layers)

    def with_mode(self, mode: str) -> Deployment:
        """Return the deployment with a recomputation mode as profiles write it."""
        name, share = split_mode(mode)
        return replace(self, recompute=name, offload_layers=share)

    @property
    def description(self) -> str:
        """Describe the training: precision, attention's kernel, and other than default options."""
        parts = [self.precision, f"attention by {self.cluster.hardware.attention_kernel}"]
        if self.precision != "bf16":
            times = self.layer_product_gain / self.product_gain
            parts[0] += f" (products {times:g} times as fast)"
        if self.loss != LOSSES[0]:
            parts.append(f"loss {self.loss}")
        if self.gradient_bytes != 4:
            parts.append(f"gradients of {self.gradient_bytes} bytes")
        if self.tp_overlap:
            parts.append(f"{percent(self.tp_overlap, 0)} of tp's collectives hidden")
        if self.recompute_modules:
            parts.append(f"recomputed alone: {', '.join(self.recompute_modules)}")
        if self.context_parallel != CONTEXT_PARALLEL[0]:
            parts.append("keys and values gathered, not passed on")
        if not self.sequence_parallel:
            parts.append("norms and residuals whole on every rank of tp")
        if self.stack != DEFAULT_STACK:
            parts.append(f"stack {self.stack}")
        if self.offload_optimizer:
            states = "parameters, gradients and " if self.offload_parameters else ""
            parts.append(f"{states}optimizer's states in host memory")
        if self.tiled_mlp:
            parts.append("feed-forward in tiles")
        if self.optimizer_shards:
            parts.append(f"states sharded over {self.optimizer_shards} GPUs")
        if experts := self.experts.description:
            parts.append(experts)
        if self.added_terms:
            parts.append(f"added cost terms {', '.join(term.name for term in self.added_terms)}")
        return ", ".join(parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats of its figures: assumptions, and parts compared with no measurement."""
        special = self.sizes.architecture
        notes = [f"left out: {part}" for part in self.sizes.left_out]
        if (warning := self.cluster.hardware.warning) is not None:
            notes.append(warning)
        hardware = self.cluster.hardware
        if not self.rates.is_checked(hardware.generation) and self.stack != DEFAULT_STACK:
            notes.append(
                f"unchecked: stack {self.stack}, of which no published run on a GPU like "
                f"{hardware.name} is compared"
            )
        if self.precision != "bf16" and hardware.generation != "hopper":
            notes.append(f"unchecked: products in {self.precision} on {hardware.name}")
        if self.expert_note is not None:
            notes.append(self.expert_note)
        if special.window_layers or special.chunk_layers:
            notes.append(
                "unchecked: attention within windows or chunks is taken as fast as full attention "
                "with as many keys"
            )
        if special.linear_layers:
            notes.append(
                "unchecked: linear attention is taken to reach a quarter of the rate of products"
            )
        if special.state_layers:
            notes.append(
                "unchecked: the scan of state-space layers is taken to reach a quarter of the rate "
                "of products"
            )
        if self.offload_layers:
            notes.append(
                f"unchecked: offload at {hardware.host_gb_s:g} GB/s each way for each GPU, next to "
                "90 % of forward and backward"
            )
        if self.offload_optimizer:
            notes.append("unchecked: the optimizer's step on the host, at 25 GB/s for each GPU")
        if special.kv_rank:
            notes.append("unchecked: latent attention (MLA), whose keys and values are made whole")
        notes.extend(
            f"unchecked: cost term {term.name}, which an installed package adds"
            for term in self.added_terms
        )
        return tuple(notes)

    @property
    def expert_note(self) -> str | None:
        """Caveat of its figures that is about experts; None without them."""
        if not self.sizes.architecture.expert_layers:
            return None
        if self.experts.degree == 1:
            return (
                "unchecked: experts. Every rank of tp holds its part of all of them (no expert "
                "parallelism), and tokens are taken as spread evenly over them"
            )
        return (
            "unchecked: experts, and exchanges between their ranks; the fullest rank of a block "
            f"has {self.experts.imbalance:g} times the mean of tokens (assumed)"
        )

    def stage_layers(self, pp: int) -> int:
        """Count the layers of the longest of ``pp`` stages: all its virtual stages together."""
        if pp == 1:
            return self.sizes.layers
        parts = pp * self.virtual_stages
        return -(-self.sizes.layers // parts) * self.virtual_stages
