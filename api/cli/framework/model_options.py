"""Options of estimates: the model, the cluster, and how it is trained.

An option imports its part of the cost models on demand, so that commands load only what they use.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from seqplan.api.cli.framework.options import add_option, as_argument, number, positive

if TYPE_CHECKING:
    from seqplan.costs.analytic.deployment import Deployment
    from seqplan.costs.analytic.expert_parallel import ExpertParallelism
    from seqplan.costs.analytic.gpus.hardware import ClusterHardware
    from seqplan.costs.model_sizes import ModelSizes
    from seqplan.plans.scheme import Scheme

FILES = """\
a model that is not listed, as JSON or TOML (or its config.json):
  {"base": "llama3-8b", "layers": 16, "vocab": 32000}
a device that is not listed: the nearest listed one, and its values
  {"base": "h100-80gb", "memory_gib": 96, "peak_tflops": 800, "intra_gb_s": 450}
"""
"""Both kinds of files, for the end of a command's help."""


def add_model(parser: argparse._ActionsContainer, *, required: bool, purpose: str = "") -> None:
    """Add ``--model``; ``purpose``: the end of its help."""
    from seqplan.costs.model_files.listed_models import MODELS

    add_option(
        parser,
        "--model NAME|FILE",
        required=required,
        type=read_model_name,
        help=f"{', '.join(MODELS)}, or a release of them, such as Qwen/Qwen3-8B; a config.json or "
        f"its folder, or a file of sizes{purpose}",
    )


def read_model_name(text: str) -> str:
    """Return the known model of a release's name, else the text."""
    from seqplan.costs.model_files.model_file import name_known

    return name_known(text) or text


def sizes_of(name: str, longest: int | None = None) -> ModelSizes:
    """Return the sizes of the model that ``--model`` names.

    ``longest``: tokens of the longest sequence that is meant, by default the longest that the model
    is made for. ``ValueError`` for an unknown name, a file that is no config or whose model is not
    modeled, a size that is missing, and sizes that do not fit together.
    """
    from seqplan.costs.model_sizes import SIZES, ModelSizes

    sizes = parse_sizes(name, longest)
    if missing := [size for size in SIZES if size not in sizes]:
        raise ValueError(f"{name}: lacks {', '.join(missing)}. Add every size, or a base")
    try:
        return ModelSizes.from_mapping(sizes)
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).removeprefix('model: ')}") from None


def parse_sizes(name: str | None, longest: int | None = None) -> dict[str, int]:
    """Return the sizes that ``--model`` names, as far as they are known; errors as ``sizes_of``."""
    from seqplan.costs.model_files.model_file import find_model

    return {} if name is None else find_model(name, longest, "--model")


def name_part(named: str) -> str:
    """Return the part of a profile's name that a model or device has.

    A name, a file's stem, or that of the folder of a config.json.
    """
    path = Path(named)
    if path.is_dir() or path.name == "config.json":
        return (path if path.is_dir() else path.parent).resolve().name
    return path.stem if path.suffix in (".json", ".toml") else named


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add ``--hardware``, ``--nodes`` and ``--gpus-per-node``."""
    from seqplan.costs.analytic.gpus.devices import DEVICES

    group = parser.add_argument_group("cluster")
    add = partial(add_option, group)
    add(
        "--hardware NAME|FILE",
        required=True,
        help=f"{', '.join(DEVICES)}, or a file of a device's values",
    )
    add("--nodes N", default=1, help="default 1")
    add("--gpus-per-node N", help="default by hardware, mostly 8")


def cluster_of(args: argparse.Namespace) -> ClusterHardware:
    """Return the requested cluster; ``ValueError`` for unknown hardware or a bandwidth of 0."""
    from seqplan.costs.analytic.gpus.hardware import ClusterHardware
    from seqplan.costs.analytic.gpus.hardware_file import find_hardware

    hardware = find_hardware(args.hardware, "--hardware")
    return ClusterHardware(hardware, args.nodes, args.gpus_per_node or hardware.gpus_per_node)


def add_training(parser: argparse.ArgumentParser, *, schedule: bool) -> None:
    """Add how the model is trained; ``schedule``: also what a profile's pipelines do not have."""
    from seqplan.costs.analytic.deployment import CONTEXT_PARALLEL, FP8_GAIN, SYNC_OVERLAPS
    from seqplan.costs.analytic.expert_parallel import DEFAULT_DISPATCHER, DISPATCHERS
    from seqplan.costs.analytic.stacks import DEFAULT_STACK, STACKS

    group = parser.add_argument_group("training")
    add = partial(add_option, group)
    add(
        "--precision bf16|fp8[:TIMES]|mxfp8[:TIMES]|nvfp4",
        type=_precision,
        default=("bf16", FP8_GAIN),
        help="of the layers' products, which fp8 and mxfp8 make so many times as fast, casts "
        f"included (default {FP8_GAIN:g}); attention, norms, head and loss are bf16; default bf16",
    )
    add(
        "--context-parallel",
        choices=CONTEXT_PARALLEL,
        default="ring",
        help="how keys and values reach the ranks of ring: step by step, or at once; default ring",
    )
    add(
        "--tp-overlap SHARE",
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
    add(
        "--stack",
        choices=tuple(STACKS),
        default=DEFAULT_STACK,
        help="software of the trainer: products, memory-bound kernels, launches; default "
        f"{DEFAULT_STACK}",
    )
    add(
        "--dispatcher NAME[:SHARE]",
        type=_dispatcher,
        default=(DEFAULT_DISPATCHER, 0.0),
        help=f"how tokens reach experts on other ranks: {', '.join(DISPATCHERS)}; with the share "
        f"of it that other kernels hide; default {DEFAULT_DISPATCHER}, none hidden",
    )
    add(
        "--expert-imbalance TIMES",
        default=1.0,
        help="tokens of the fullest rank of experts over the mean of its block; default 1",
    )
    if not schedule:
        return
    add(
        "--optimizer-shards N",
        default=0,
        help="GPUs that ZeRO splits states over, copies on the others (hybrid ZeRO); default all",
    )
    add("--offload-optimizer", help="the optimizer's states are in host memory, and it steps there")
    add(
        "--offload-parameters",
        help="parameters and gradients are in host memory too, under ZeRO 3",
    )
    add("--tiled-mlp", help="feed-forwards run a tile of tokens at a time, and again in backward")
    add(
        "--virtual-stages V",
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


_OF_AXES: dict[str, tuple[str, object]] = {
    "context_parallel": ("ring", "ring"),
    "tp_overlap": ("tp", 0.0),
    "sequence_parallel": ("tp", True),
    "virtual_stages": ("pp", 1),
}
"""Option → the axis that it concerns, and its default."""


def check_axes(args: argparse.Namespace, schemes: Collection[Scheme]) -> None:
    """Check that options concern a scheme: ``ValueError`` if none has their axis."""
    for name, (axis, default) in _OF_AXES.items():
        value = getattr(args, name, default)
        if value != default and all(getattr(scheme, axis) == 1 for scheme in schemes):
            option = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            raise ValueError(
                f"{option}: no scheme has {axis} above 1. Add one, or leave {option} out"
            )


def _precision(text: str) -> tuple[str, float]:
    """Read a precision, and the gain of fp8."""
    from seqplan.costs.analytic.deployment import FP8_GAIN, PRECISIONS

    name, colon, gain = text.partition(":")
    if name not in PRECISIONS or (colon and name not in ("fp8", "mxfp8")):
        raise argparse.ArgumentTypeError(
            f"must be {', '.join(PRECISIONS)}, fp8:TIMES or mxfp8:TIMES: {text!r}"
        )
    times = number(gain) if colon else FP8_GAIN
    if not 1 <= times <= 4:
        raise argparse.ArgumentTypeError(f"must be faster by 1 to 4 times: {text!r}")
    return name, times


def _dispatcher(text: str) -> tuple[str, float]:
    """Read a dispatcher, and the share of its exchanges that is hidden."""
    name, colon, share = text.partition(":")
    return name, number(share) if colon else 0.0


def degrees(text: str) -> tuple[int, ...]:
    """Read degrees as ``1,2,4``, each once."""
    return tuple(dict.fromkeys(positive(part) for part in text.split(",")))


def experts_of(args: argparse.Namespace, degree: int) -> ExpertParallelism:
    """Return the requested expert parallelism of a degree; ``ValueError`` for bad values."""
    from seqplan.costs.analytic.expert_parallel import ExpertParallelism

    if degree == 1 < max(args.expert_parallel):
        return ExpertParallelism()
    dispatcher, overlap = args.dispatcher
    return ExpertParallelism(
        degree=degree,
        tensor=getattr(args, "expert_tensor_parallel", 1),
        dispatcher=dispatcher,
        imbalance=args.expert_imbalance,
        overlap=overlap,
    )


def deployment_of(args: argparse.Namespace, longest: int | None = None) -> Deployment:
    """Return the requested cluster, model and training; ``ValueError`` as the parts."""
    from seqplan.costs.analytic.added_terms import load_cost_terms
    from seqplan.costs.analytic.deployment import Deployment
    from seqplan.plans.recomputation import split_mode

    recompute, offloaded = split_mode(args.recompute if isinstance(args.recompute, str) else "none")
    modules = args.recompute if isinstance(args.recompute, frozenset) else ()
    cluster = cluster_of(args)
    options = vars(args) | {
        "cluster": cluster,
        "sizes": sizes_of(args.model, longest),
        "loss": args.loss or "chunked",
        "precision": args.precision[0],
        "fp8_gain": args.precision[1],
        "added_terms": load_cost_terms(cluster.hardware.cost_terms),
        "host_memory_bytes": cluster.hardware.host_memory_bytes,
        "experts": experts_of(args, max(args.expert_parallel)),
        "recompute": recompute,
        "recompute_modules": tuple(sorted(modules)),
        "offload_layers": offloaded,
    }
    names = [field.name for field in fields(Deployment) if field.name in options]
    return Deployment(**{name: options[name] for name in names})


@as_argument
def parse_mode(text: str) -> str:
    """Read a recomputation mode."""
    from seqplan.plans.recomputation import split_mode

    split_mode(text)
    return text


def parse_mode_or_modules(text: str) -> str | frozenset[str]:
    """Read a recomputation mode, or the parts of a layer that are recomputed alone."""
    from seqplan.costs.analytic.deployment import RECOMPUTED_MODULES

    parts = frozenset(text.split(","))
    if parts & set(RECOMPUTED_MODULES) - {"mlp"} or len(parts) > 1:
        if unknown := sorted(parts - set(RECOMPUTED_MODULES)):
            raise argparse.ArgumentTypeError(
                f"parts must be of {', '.join(RECOMPUTED_MODULES)}: {unknown[0]!r}"
            )
        return parts
    return parse_mode(text)


def parse_modes(text: str) -> tuple[str, ...]:
    """Read a list of recomputation modes, or ``all``."""
    from seqplan.plans.recomputation import MODES

    names = MODES if text == "all" else tuple(parse_mode(name) for name in text.split(","))
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"must name each mode once: {text!r}")
    return names
