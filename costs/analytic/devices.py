"""The GPUs that have a name here, from their data sheets."""

from __future__ import annotations

import re
from difflib import get_close_matches

from seqplan.costs.analytic.hardware import GIB, Hardware

_A100 = "NVIDIA A100 data sheet: 312 TFLOP/s, NVLink 600 GB/s; DGX A100: 200 Gb/s HDR per GPU"
_HOPPER = "data sheet: 989 TFLOP/s dense, NVLink 900 GB/s; DGX: 400 Gb/s NDR per GPU"

HOPPER_PRODUCTS = 0.66
"""Share of the peak that large bf16 products reach on an H100 at 700 W, which cannot hold its clock
in them: see docs/analytic-model.md for the tables that it was set with."""

B200_PRODUCTS = 0.55
"""The same for B200 and GB200, by rows of an even hash in fp8 and mxfp8 on GB200."""

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
            host_gb_s=25,
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
            host_gb_s=25,
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
            host_gb_s=25,
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
            host_gb_s=55,
            matmul_efficiency=HOPPER_PRODUCTS,
            generation="hopper",
            source=f"NVIDIA H100 SXM {_HOPPER}; 3.35 TB/s",
        ),
        Hardware(
            name="h100-500w-96gb",
            peak_tflops=989,
            memory_bytes=96 * GIB,
            hbm_gb_s=2400,
            multiprocessors=132,
            intra_gb_s=450,
            inter_gb_s=50,
            host_gb_s=55,
            matmul_efficiency=0.48,
            generation="hopper",
            unchecked=True,
            source="H100 SXM limited to 500 W, with 96 GB of HBM2e at 2.4 TB/s, as torchtitan's "
            "benchmarks describe theirs; products assumed to fall with the power",
        ),
        Hardware(
            name="h100-pcie-80gb",
            peak_tflops=756,
            memory_bytes=80 * GIB,
            hbm_gb_s=2000,
            multiprocessors=114,
            intra_gb_s=64,
            inter_gb_s=25,
            host_gb_s=27.5,
            intra_latency_us=20.0,
            socket_gpus=4,
            switch_gpus=2,
            matmul_efficiency=0.6,
            generation="hopper",
            unchecked=True,
            source="NVIDIA H100 PCIe data sheet: 756 TFLOP/s dense, 2 TB/s, 350 W, PCIe 5.0 x16 "
            "(64 GB/s one way); two switches to a socket and 200 Gb/s per GPU assumed",
        ),
        Hardware(
            name="h200-141gb",
            peak_tflops=989,
            memory_bytes=141e9,
            hbm_gb_s=4800,
            multiprocessors=132,
            intra_gb_s=450,
            inter_gb_s=50,
            host_gb_s=55,
            matmul_efficiency=HOPPER_PRODUCTS,
            generation="hopper",
            unchecked=True,
            source=f"NVIDIA H200 SXM {_HOPPER}; 4.8 TB/s",
        ),
        Hardware(
            name="h800-80gb",
            peak_tflops=989,
            memory_bytes=80 * GIB,
            hbm_gb_s=3350,
            multiprocessors=132,
            intra_gb_s=200,
            inter_gb_s=50,
            host_gb_s=55,
            matmul_efficiency=HOPPER_PRODUCTS,
            generation="hopper",
            unchecked=True,
            source="as H100 SXM with NVLink of 400 GB/s (H800 data sheet)",
        ),
        Hardware(
            name="h20-96gb",
            peak_tflops=148,
            memory_bytes=96 * GIB,
            hbm_gb_s=4000,
            multiprocessors=78,
            intra_gb_s=450,
            inter_gb_s=50,
            host_gb_s=55,
            generation="h20",
            unchecked=True,
            source="NVIDIA H20 data sheet: 148 TFLOP/s dense, 96 GB, 4.0 TB/s, NVLink 900 GB/s; "
            "400 Gb/s per GPU assumed",
        ),
        Hardware(
            name="b200-180gb",
            peak_tflops=2250,
            memory_bytes=180e9,
            hbm_gb_s=8000,
            multiprocessors=148,
            intra_gb_s=900,
            inter_gb_s=50,
            host_gb_s=55,
            matmul_efficiency=B200_PRODUCTS,
            generation="blackwell",
            unchecked=True,
            source="NVIDIA DGX B200 data sheet: 2,250 TFLOP/s dense, 180 GB, 8 TB/s, NVLink 1.8 "
            "TB/s, 400 Gb/s per GPU",
        ),
        Hardware(
            name="gb200-186gb",
            peak_tflops=2500,
            memory_bytes=186e9,
            hbm_gb_s=8000,
            multiprocessors=148,
            intra_gb_s=900,
            inter_gb_s=50,
            host_gb_s=360,
            gpus_per_node=72,
            matmul_efficiency=B200_PRODUCTS,
            generation="blackwell",
            unchecked=True,
            source="NVIDIA GB200 NVL72 data sheet: 2,500 TFLOP/s dense, 186 GB, 8 TB/s, NVLink 1.8 "
            "TB/s among 72 GPUs, which count as one node; 400 Gb/s per GPU beyond",
        ),
        Hardware(
            name="b300-270gb",
            peak_tflops=2250,
            memory_bytes=270e9,
            hbm_gb_s=8000,
            multiprocessors=148,
            intra_gb_s=900,
            inter_gb_s=100,
            host_gb_s=55,
            matmul_efficiency=HOPPER_PRODUCTS,
            fp4_ratio=6.0,
            generation="blackwell",
            unchecked=True,
            source="NVIDIA DGX B300 data sheet: 18 PFLOP/s dense bf16 of 8 GPUs, 2.1 TB of their "
            "memory, 8 TB/s, NVLink 1.8 TB/s, 800 Gb/s per GPU",
        ),
        Hardware(
            name="gb300-279gb",
            peak_tflops=2500,
            memory_bytes=279e9,
            hbm_gb_s=8000,
            multiprocessors=148,
            intra_gb_s=900,
            inter_gb_s=100,
            host_gb_s=360,
            gpus_per_node=72,
            matmul_efficiency=HOPPER_PRODUCTS,
            fp4_ratio=6.0,
            generation="blackwell",
            unchecked=True,
            source="NVIDIA GB300 NVL72 data sheet: 2,500 TFLOP/s dense, 20 TB of memory on 72 "
            "GPUs, 8 TB/s, NVLink 1.8 TB/s among them, which count as one node; 800 "
            "Gb/s per GPU beyond",
        ),
        Hardware(
            name="mi300x-192gb",
            peak_tflops=1307,
            memory_bytes=192e9,
            hbm_gb_s=5300,
            multiprocessors=304,
            intra_gb_s=448,
            inter_gb_s=50,
            host_gb_s=55,
            matmul_efficiency=0.5,
            generation="cdna3",
            unchecked=True,
            source="AMD MI300X data sheet: 1,307 TFLOP/s dense, 192 GB, 5.3 TB/s, seven links of "
            "64 GB/s one way; 400 Gb/s per GPU assumed",
        ),
        Hardware(
            name="mi325x-256gb",
            peak_tflops=1307,
            memory_bytes=256e9,
            hbm_gb_s=6000,
            multiprocessors=304,
            intra_gb_s=448,
            inter_gb_s=50,
            host_gb_s=55,
            matmul_efficiency=0.5,
            generation="cdna3",
            unchecked=True,
            source="AMD MI325X data sheet: 1,307 TFLOP/s dense, 256 GB, 6 TB/s, seven links of "
            "64 GB/s one way; 400 Gb/s per GPU assumed",
        ),
        Hardware(
            name="l20-48gb",
            peak_tflops=119.5,
            memory_bytes=48 * GIB,
            hbm_gb_s=864,
            multiprocessors=92,
            intra_gb_s=32,
            inter_gb_s=12.5,
            host_gb_s=12.5,
            generation="ada",
            socket_gpus=4,
            switch_gpus=2,
            intra_latency_us=20.0,
            source="NVIDIA L20 data sheet: 119.5 TFLOP/s, 864 GB/s, PCIe 4.0 x16 (32 GB/s one "
            "way); 8 GPUs in a server of two sockets, two PCIe switches each (assumed), 100 Gb/s "
            "Ethernet per GPU (assumed)",
        ),
    )
}
"""Hardware by name.

Large bf16 products reach about 85 % of the peak on A100; those of devices that are ``unchecked``
are assumed, not measured, half of the peak on an MI300X among them. ``host_gb_s`` is assumed for
all: 25 of PCIe 4.0's 32 GB/s, 55 of PCIe 5.0's 64, half of it where two GPUs share a switch, and
80 % of the 450 GB/s of a GB200's link to its host.
"""


def find_device(name: str, parameter: str = "device") -> Hardware:
    """Return the hardware of this name; ``ValueError`` suggests the nearest of all.

    In any case of letters; the size of its memory may be left out if there is one, as in ``h100``.
    ``parameter``: its name for the reader.
    """
    lower = name.lower()
    sized = [known for known in DEVICES if re.fullmatch(rf"{re.escape(lower)}-[0-9]+gb", known)]
    if lower not in DEVICES and len(sized) != 1:
        near = get_close_matches(lower, DEVICES, n=1, cutoff=0.4)
        meant = f"Did you mean {' or '.join(sized or near)}? " if sized or near else ""
        raise ValueError(
            f"{parameter} {name!r}: unknown. {meant}There are {', '.join(DEVICES)}, or give a "
            "file of a device's values (.json, .toml)"
        )
    return DEVICES[lower if lower in DEVICES else sized[0]]
