"""GPUs and clusters as their data sheets state them, and how much of it kernels and links reach."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One kind of GPU and its node. Bandwidths are per GPU and one direction, 1 GB = 10⁹ bytes.

    - ``peak_tflops``: dense bf16 tensor-core TFLOP/s; ``memory_bytes``; ``hbm_gb_s``;
      ``multiprocessors``: what tiles of a kernel are spread over.
    - ``intra_gb_s``, ``inter_gb_s``: links to GPUs of the same node and of other nodes.
    - ``intra_latency_us``, ``inter_latency_us``: start of a transfer.
    - ``socket_gpus``, ``switch_gpus``: of a node without NVLink: GPUs under one host bridge, and
      under one PCIe switch below it; 0 with NVLink. Traffic between switches shares the bridge.
    - ``matmul_efficiency``, ``attention_efficiency``: share of the peak that large matrix products
      and the forward attention kernel without a mask reach.
    - ``source``: of the data-sheet figures.
    - ``unchecked``: whether no published measurement has been held against those two shares.
    """

    name: str
    peak_tflops: float
    memory_bytes: float
    hbm_gb_s: float
    multiprocessors: int
    intra_gb_s: float
    inter_gb_s: float
    intra_latency_us: float = 10.0
    inter_latency_us: float = 20.0
    socket_gpus: int = 0
    switch_gpus: int = 0
    gpus_per_node: int = 8
    matmul_efficiency: float = 0.85
    attention_efficiency: float = 0.73
    source: str
    unchecked: bool = False

    @property
    def warning(self) -> str | None:
        """What must be said beside every figure that is predicted for it, or None."""
        if not self.unchecked:
            return None
        return (
            f"unchecked: that {self.name} reaches {self.matmul_efficiency:.0%} of its peak in "
            f"products and {self.attention_efficiency:.0%} in attention is assumed, and held "
            "against no measurement; times may be off by a factor of two"
        )

    def __post_init__(self) -> None:
        for field in ("peak_tflops", "memory_bytes", "hbm_gb_s", "intra_gb_s", "inter_gb_s"):
            if not 1e-3 <= getattr(self, field) <= 1e15:
                raise ValueError(
                    f"hardware: {field} must be from 0.001 to 1e15, not {getattr(self, field)!r}"
                )


LINK_EFFICIENCY = 0.8
"""Share of a link's bandwidth that NCCL reaches with large messages (nccl-tests: 230 to 240 GB/s
of 300 on A100, about 80 % of InfiniBand and PCIe after their framing)."""

HBM_EFFICIENCY = 0.85
"""Share of the memory bandwidth that a streaming kernel reaches."""

BRIDGE_FLOWS = 3.5
"""Concurrent transfers that a PCIe host bridge serves at its full rate; f of them share
BRIDGE_FLOWS/f of it. No source states it; taken from whole programs (USP, table 4,
whose winners are found with any value from 3.2 to 3.9)."""

_A100 = "NVIDIA A100 data sheet: 312 TFLOP/s, NVLink 600 GB/s; DGX A100: 200 Gb/s HDR per GPU"
_H100 = "data sheet: 989 TFLOP/s dense, NVLink 900 GB/s; DGX: 400 Gb/s NDR per GPU"

DEVICES: dict[str, Hardware] = {
    device.name: device
    for device in (
        Hardware(
            name="a100-40gb",
            peak_tflops=312,
            memory_bytes=40 * GIB,
            hbm_gb_s=1555,
            multiprocessors=108,
            intra_gb_s=300,
            inter_gb_s=25,
            source=f"{_A100}; 1,555 GB/s",
        ),
        Hardware(
            name="a100-80gb",
            peak_tflops=312,
            memory_bytes=80 * GIB,
            hbm_gb_s=2039,
            multiprocessors=108,
            intra_gb_s=300,
            inter_gb_s=25,
            source=f"{_A100}; 2,039 GB/s",
        ),
        Hardware(
            name="a800-80gb",
            peak_tflops=312,
            memory_bytes=80 * GIB,
            hbm_gb_s=2039,
            multiprocessors=108,
            intra_gb_s=200,
            inter_gb_s=25,
            source="as A100-80 SXM with NVLink of 400 GB/s (A800 data sheet)",
        ),
        Hardware(
            name="h100-80gb",
            peak_tflops=989,
            memory_bytes=80 * GIB,
            hbm_gb_s=3350,
            multiprocessors=132,
            intra_gb_s=450,
            inter_gb_s=50,
            matmul_efficiency=0.7,
            attention_efficiency=0.6,
            unchecked=True,
            source=f"NVIDIA H100 SXM {_H100}; 3.35 TB/s",
        ),
        Hardware(
            name="h200-141gb",
            peak_tflops=989,
            memory_bytes=141e9,
            hbm_gb_s=4800,
            multiprocessors=132,
            intra_gb_s=450,
            inter_gb_s=50,
            matmul_efficiency=0.7,
            attention_efficiency=0.6,
            unchecked=True,
            source=f"NVIDIA H200 SXM {_H100}; 4.8 TB/s",
        ),
        Hardware(
            name="l20-48gb",
            peak_tflops=119.5,
            memory_bytes=48 * GIB,
            hbm_gb_s=864,
            multiprocessors=92,
            intra_gb_s=32,
            inter_gb_s=12.5,
            attention_efficiency=0.95,
            socket_gpus=4,
            switch_gpus=2,
            intra_latency_us=20.0,
            source="NVIDIA L20 data sheet: 119.5 TFLOP/s, 864 GB/s, PCIe 4.0 x16 (32 GB/s one "
            "way); 8 GPUs in a server of two sockets, two PCIe switches each (assumed), 100 Gb/s "
            "Ethernet per GPU (assumed)",
        ),
    )
}
"""Hardware by name. Kernel efficiencies: FlashAttention-2 (arXiv 2307.08691) states 73 % of an
A100's peak forward; large bf16 products reach about 85 % on A100. Assumed, not measured: 70 % and
60 % on Hopper, whose power limits it, and 95 % on the L20, whose tensor cores run at half the rate
of their kind and leave the rest of a kernel time to keep up: with 85 % the kernels alone would take
longer than all of USP's basic ring at 128K."""


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
