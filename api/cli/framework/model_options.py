"""Options of estimates: the model, the cluster, and how it is trained.

An option imports its part of the profiler on demand, so that commands load only what they use.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from seqplan.api.cli.framework.options import number, positive

if TYPE_CHECKING:
    from seqplan.costs.analytic.deployment import Deployment
    from seqplan.costs.analytic.hardware import ClusterHardware
    from seqplan.costs.model_sizes import ModelSizes


DEVICE_FIGURES = ("peak_tflops", "hbm_gb_s", "memory_bytes", "matmul_efficiency")
"""Options that change a listed device."""


def add_model(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add ``--model`` and a flag for every size."""
    from seqplan.costs.model_sizes import MODELS, SIZES

    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        required=required,
        help=f"{', '.join(MODELS)}, or a config.json",
    )
    for size in SIZES:
        group.add_argument(f"--{size.replace('_', '-')}", metavar="N", type=positive)
    group.add_argument(
        "--head-dim", metavar="N", type=positive, help="of one head; default hidden / heads"
    )
    group.add_argument(
        "--tied",
        action=argparse.BooleanOptionalAction,
        help="the output head's weight is the embedding's; default by model, or not",
    )


def sizes_of(args: argparse.Namespace, longest: int | None = None) -> ModelSizes:
    """Return the requested sizes, single flags over those of the named model.

    ``longest``: tokens of the longest sequence that is meant, by default the longest that the model
    is made for. ``ValueError`` for an unknown name, a file that is no config or whose model is not
    modeled, a size that is missing, and sizes that do not fit together.
    """
    from seqplan.costs.model_sizes import SIZES, ModelSizes

    sizes = parse_sizes(args, longest)
    if missing := [size for size in SIZES if size not in sizes]:
        raise ValueError(
            f"model: {', '.join(missing)} not given; name a --model or give every size"
        )
    return ModelSizes.from_mapping(sizes)


def parse_sizes(args: argparse.Namespace, longest: int | None = None) -> dict[str, int]:
    """Return the sizes that the options give; errors as ``sizes_of``."""
    from seqplan.costs.model_sizes import SIZES

    sizes = dict(_name_model(args.model, longest)) if args.model else {}
    for size in (*SIZES, "head_dim", "tied"):
        if (value := getattr(args, size)) is not None:
            sizes[size] = value
    return sizes


def _name_model(name: str, longest: int | None) -> dict[str, int]:
    from seqplan.costs.model_config import read_model_config
    from seqplan.costs.model_sizes import MODELS

    if name in MODELS:
        return MODELS[name]
    if not name.endswith(".json"):
        raise ValueError(
            f"--model {name!r}: neither a known model ({', '.join(MODELS)}) nor a config.json"
        )
    return read_model_config(Path(name), longest)


def add_cluster(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add ``--hardware``, ``--nodes``, ``--gpus-per-node`` and what replaces its figures."""
    from seqplan.costs.analytic.attention_rates import ATTENTION_KERNELS
    from seqplan.costs.analytic.devices import DEVICES

    group = parser.add_argument_group(
        "cluster", "a device that is not listed: the nearest listed one, and its numbers"
    )
    add = group.add_argument
    add("--hardware", metavar="NAME", required=required, help=", ".join(DEVICES))
    add("--nodes", metavar="N", type=positive, default=1, help="default 1")
    add("--gpus-per-node", metavar="N", type=positive, help="default by hardware, mostly 8")
    add(
        "--intra-gb-s",
        metavar="GB/S",
        type=number,
        help="link of a GPU to others of its node, one way; default by hardware",
    )
    add(
        "--inter-gb-s",
        metavar="GB/S",
        type=number,
        help="a GPU's share of the links to other nodes, one way; default by hardware",
    )
    add(
        "--inter-rails",
        metavar="N",
        type=positive,
        help="network cards that a group with a part of a node's GPUs uses; default 1, as groups "
        "lie side by side; 8 where every GPU has separate rails (DGX)",
    )
    add("--peak-tflops", metavar="TFLOP/S", type=number, help="of dense bf16 products")
    add("--hbm-gb-s", metavar="GB/S", type=number, help="of the GPU's memory")
    add("--memory-gib", metavar="GIB", type=number, help="of a GPU")
    add(
        "--matmul-efficiency",
        metavar="SHARE",
        type=number,
        help="share of --peak-tflops that large products reach under sustained power",
    )
    add(
        "--attention-kernel",
        choices=ATTENTION_KERNELS,
        help="default fa2 (FlashAttention-2), which this runtime calls on every CUDA device",
    )


def cluster_of(args: argparse.Namespace) -> ClusterHardware:
    """Return the requested cluster; ``ValueError`` for unknown hardware or a bandwidth of 0."""
    from seqplan.costs.analytic.devices import find_device
    from seqplan.costs.analytic.hardware import GIB, ClusterHardware

    hardware = find_device(args.hardware, "--hardware")
    options = {
        name: getattr(args, name)
        for name in (
            *("intra_gb_s", "inter_gb_s", "inter_rails", "peak_tflops", "hbm_gb_s"),
            *("matmul_efficiency", "attention_kernel"),
        )
        if getattr(args, name) is not None
    }
    if args.memory_gib is not None:
        options["memory_bytes"] = args.memory_gib * GIB
    changed = [name for name in DEVICE_FIGURES if name in options]
    if changed:
        options["unchecked"] = True
        figures = ", ".join(f"{name.replace('_', ' ')} {options[name]:g}" for name in changed)
        options["source"] = f"{hardware.source}; as given: {figures}"
    hardware = replace(hardware, **options)
    return ClusterHardware(hardware, args.nodes, args.gpus_per_node or hardware.gpus_per_node)


def add_training(parser: argparse.ArgumentParser, *, schedule: bool) -> None:
    """Add how the model is trained; ``schedule``: also what a profile's pipelines do not have."""
    from seqplan.costs.analytic.deployment import (
        CONTEXT_PARALLEL,
        FP8_GAIN,
        PRECISIONS,
        SYNC_OVERLAPS,
    )

    group = parser.add_argument_group("training", "with estimates")
    add = group.add_argument
    add(
        "--precision",
        choices=PRECISIONS,
        default="bf16",
        help="of the layers' products; attention, norms, head and loss are bf16; default bf16",
    )
    add(
        "--fp8-gain",
        metavar="TIMES",
        type=number,
        default=FP8_GAIN,
        help=f"how much faster products are in fp8, casts included; default {FP8_GAIN:g}",
    )
    add(
        "--context-parallel",
        choices=CONTEXT_PARALLEL,
        default="ring",
        help="how --ring brings keys and values to the ranks; default ring",
    )
    add(
        "--tp-overlap",
        metavar="SHARE",
        type=number,
        default=0.0,
        help="share of tp's collectives hidden by products; default 0",
    )
    add(
        "--gradient-bytes",
        type=int,
        choices=(2, 4),
        default=4,
        help="of a gradient's sum; default 4",
    )
    add(
        "--sequence-parallel",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="tp splits norms and residuals by tokens too; default yes",
    )
    if not schedule:
        return
    add(
        "--virtual-stages",
        metavar="V",
        type=positive,
        default=1,
        help="parts of a rank's layers (interleaved 1F1B); default 1",
    )
    add(
        "--sync",
        choices=SYNC_OVERLAPS,
        default="exposed",
        help="of gradients and parameters under ZeRO 1 and 2: after forward and backward, or "
        "during it; default exposed",
    )


_TRAINING_DEFAULTS = {
    "precision": "bf16",
    "context_parallel": "ring",
    "tp_overlap": 0.0,
    "gradient_bytes": 4,
    "sequence_parallel": True,
}


def refuse_training(args: argparse.Namespace, why: str) -> None:
    """Raise ``ValueError`` for a training option that this command does not use."""
    for name, default in _TRAINING_DEFAULTS.items():
        if getattr(args, name) != default:
            raise ValueError(f"--{name.replace('_', '-')} goes with --estimate only: {why}")


_DEVICE_OPTIONS = (
    *("hardware", "intra_gb_s", "inter_gb_s", "inter_rails", "peak_tflops", "hbm_gb_s"),
    *("memory_gib", "matmul_efficiency", "attention_kernel"),
)


def refuse_devices(args: argparse.Namespace, why: str) -> None:
    """``ValueError`` if an option describes devices, and those there are are measured."""
    named = [name for name in _DEVICE_OPTIONS if getattr(args, name) is not None]
    if named or args.nodes != 1:
        option = (named or ["nodes"])[0].replace("_", "-")
        raise ValueError(f"--{option} goes with --estimate and --complete only: {why}")


def deployment_of(args: argparse.Namespace, longest: int | None = None) -> Deployment:
    """Return the requested cluster, model and training; ``ValueError`` as the parts."""
    from seqplan.costs.analytic.deployment import Deployment

    schedule = {
        name: getattr(args, name) for name in ("virtual_stages", "sync") if hasattr(args, name)
    }
    return Deployment(
        cluster=cluster_of(args),
        sizes=sizes_of(args, longest=longest),
        zero=args.zero,
        checkpointing=args.checkpointing,
        precision=args.precision,
        fp8_gain=args.fp8_gain,
        context_parallel=args.context_parallel,
        tp_overlap=args.tp_overlap,
        gradient_bytes=args.gradient_bytes,
        sequence_parallel=args.sequence_parallel,
        **schedule,
    )
