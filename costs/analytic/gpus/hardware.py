"""A GPU, its node and a cluster as data sheets state them, and how much of it links reach."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.costs.analytic.gpus.attention_rates import AttentionRate, rate_of
from seqplan.plans.percent import percent

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One kind of GPU and its node. Bandwidths are per GPU and one direction, 1 GB = 10⁹ bytes.

    - ``peak_tflops``: dense bf16 tensor-core TFLOP/s; ``memory_bytes``; ``hbm_gb_s``;
      ``multiprocessors``: what tiles of a kernel are spread over.
    - ``intra_gb_s``, ``inter_gb_s``: links to GPUs of the same node and of other nodes.
    - ``intra_latency_us``, ``inter_latency_us``: start of a transfer; ``inter_rank_us``: what each
      further rank of a collective between nodes adds, about 1 with InfiniBand, more with RoCE.
    - ``socket_gpus``, ``switch_gpus``: of a node without NVLink: GPUs under one host bridge, and
      under one PCIe switch below it; 0 with NVLink. Traffic between switches shares the bridge.
    - ``host_gb_s``: link to host memory, one direction, that a large copy reaches with the other
      GPUs of the node copying too; 0 if it is not known, and nothing may be offloaded.
    - ``host_memory_bytes``: of the host for the activations of one GPU, to which recomputation
      modes may offload; 0 if they may not. ``cost_terms``: names of cost terms that packages add.
    - ``matmul_efficiency``: share of the peak that large matrix products reach; ``fp4_ratio``: peak
      in nvfp4 over that in bf16.
    - ``generation``: of ``attention_rates``, whose kernels it runs; ``attention_kernel``: the one
      that is meant, by default what this runtime calls.
    - ``inter_rails``: network cards that a collective of part of a node's GPUs uses; 0 for one.
    - ``source``: of the data-sheet figures.
    - ``unchecked``: whether no published measurement has been compared with the rates reached.
    """

    name: str
    peak_tflops: float
    memory_bytes: float
    hbm_gb_s: float
    multiprocessors: int
    intra_gb_s: float
    inter_gb_s: float
    host_gb_s: float = 0.0
    host_memory_bytes: float = 0.0
    cost_terms: tuple[str, ...] = ()
    intra_latency_us: float = 10.0
    inter_latency_us: float = 20.0
    inter_rank_us: float = 1.0
    socket_gpus: int = 0
    switch_gpus: int = 0
    gpus_per_node: int = 8
    matmul_efficiency: float = 0.85
    fp4_ratio: float = 4.0
    generation: str = "ampere"
    attention_kernel: str = "fa2"
    inter_rails: int = 0
    source: str
    unchecked: bool = False

    @property
    def attention_rate(self) -> AttentionRate:
        """How fast its attention kernel runs."""
        return rate_of(self.generation, self.attention_kernel)

    @property
    def warning(self) -> str | None:
        """Caveat of every figure that is predicted for it, or None."""
        rate = self.attention_rate
        if not self.unchecked and rate.checked:
            return None
        return (
            f"unchecked: that {self.name} reaches {percent(self.matmul_efficiency, 0)} of its "
            f"peak in products and {percent(rate.forward, 0)} in attention "
            f"({self.attention_kernel}) is assumed, "
            "and compared with no measurement; times may be off by a factor of two"
        )

    def __post_init__(self) -> None:
        for field in ("peak_tflops", "memory_bytes", "hbm_gb_s", "intra_gb_s", "inter_gb_s"):
            if not 1e-3 <= getattr(self, field) <= 1e15:
                raise ValueError(
                    f"hardware: {field} must be from 0.001 to 1e15, not {getattr(self, field)!r}"
                )
        if not 0 <= self.host_gb_s <= 1e6:
            raise ValueError(f"hardware: host_gb_s must be from 0 to 1e6, not {self.host_gb_s!r}")
        if not 0 <= self.inter_rank_us <= 1e4:
            raise ValueError(
                f"hardware: inter_rank_us must be from 0 to 10,000, not {self.inter_rank_us!r}"
            )
        if not 0.01 <= self.matmul_efficiency <= 1:
            raise ValueError(
                "hardware: matmul_efficiency must be from 0.01 to 1, not "
                f"{self.matmul_efficiency!r}"
            )
        rate_of(self.generation, self.attention_kernel)


LINK_EFFICIENCY = 0.8
"""Share of a link's bandwidth that NCCL reaches with large messages (nccl-tests: 230 to 240 GB/s
of 300 on A100, about 80 % of InfiniBand and PCIe after their framing)."""

HBM_EFFICIENCY = 0.85
"""Share of the memory bandwidth that a streaming kernel reaches."""

BRIDGE_FLOWS = 3.5
"""Concurrent transfers that a PCIe host bridge serves at its full rate; f of them share
BRIDGE_FLOWS/f of it. No source states it; taken from whole programs (USP, table 4,
whose winners are found with any value from 3.2 to 3.9)."""


@dataclass(frozen=True, slots=True)
class ClusterHardware:
    """Nodes of equal GPUs, fast links within a node and slower ones between."""

    hardware: Hardware
    nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        for name, most in (("nodes", 10**6), ("gpus_per_node", 1024)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(
                    f"cluster: {name} must be from 1 to {most:,}, not {getattr(self, name)}"
                )

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def peak_flops(self) -> float:
        """Dense bf16 FLOP/s of one GPU."""
        return self.hardware.peak_tflops * 1e12
