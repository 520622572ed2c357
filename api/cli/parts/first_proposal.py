"""A proposal for data alone: the profile is found or derived, and strategies are proposed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from seqplan.api.cli.framework.output import count_of
from seqplan.costs.profile import Profile
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.errors import Infeasible
from seqplan.planner.proposal.backends import apply_backend, find_backend
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.workload import MOST_GPUS, TOKENS_PER_GPU, Workload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seqplan.planner.proposal.candidates import Progress
    from seqplan.planner.proposal.document import Proposal


@dataclass(frozen=True)
class FirstProposal:
    """A proposal, its profile before the trainer restricts it, and how that was found."""

    proposal: Proposal
    profile: Profile
    origin: str


def list_short_steps(workload: Workload) -> list[str]:
    """Warn of steps that are shorter than a sequence may be."""
    if workload.tokens >= workload.max_len:
        return []
    sentence = (
        f"A step of {count_of(workload.tokens, 'token')} is shorter than --max-len "
        f"{workload.max_len:,}: a longer sequence is a step alone. Give more --tokens."
    )
    return [sentence]


def propose_for_data(
    args: argparse.Namespace, lengths: npt.NDArray[np.integer], progress: Progress
) -> FirstProposal:
    """Propose for ``--profile``, or for ``--model`` on ``--hardware``.

    ``ValueError`` for options that are missing or bad, ``Infeasible`` if no scheme holds the
    longest sequence.
    """
    if args.gpus is None:
        raise ValueError("--gpus is required without --proposal. Give the number of GPUs")
    max_len = args.max_len or int(lengths.max())
    workload = Workload(args.gpus, max_len, args.tokens or TOKENS_PER_GPU * args.gpus)
    sampler = Sampler(lengths, workload.tokens, max_len, args.seed)
    if args.profile is not None:
        from seqplan.costs.shipped.catalogue import find_profile

        profile, origin = find_profile(args.profile), f"profile {args.profile}"
    else:
        profile, origin = _profile_of_model(args, workload, sampler)
    proposal = make_proposal(
        profile,
        workload,
        lengths,
        seed=args.seed,
        execution=args.execution,
        trainer=args.trainer,
        progress=progress,
    )
    return FirstProposal(proposal, profile, origin)


def _profile_of_model(
    args: argparse.Namespace, workload: Workload, sampler: Sampler
) -> tuple[Profile, str]:
    """Return a measured profile that ships, or derive one; and a line on which it is."""
    from seqplan.api.cli.framework.model_options import name_part, sizes_of
    from seqplan.costs.analytic.gpus.hardware import ClusterHardware
    from seqplan.costs.analytic.gpus.hardware_file import find_hardware
    from seqplan.costs.analytic.stacks import DEFAULT_STACK
    from seqplan.costs.derived.model_profiles import derive_model_profile
    from seqplan.costs.model_files.listed_models import MODELS
    from seqplan.costs.shipped.catalogue import list_shipped, load_shipped

    hardware = find_hardware(args.hardware, "--hardware")
    name = f"{name_part(args.model)}-{hardware.name}"
    if args.model in MODELS and name in list_shipped():
        shipped = load_shipped(name)
        if any(entry.origin != "derived" for entry in shipped.schemes):
            return shipped, f"profile {name}, which ships: {shipped.source}"
    per_node = min(hardware.gpus_per_node, workload.gpus)
    hosts = ClusterHardware(hardware, ceil(workload.gpus / per_node), per_node)
    backend = find_backend(args.trainer or "seqplan")
    loss, zero = backend.loss, 1 if args.trainer is None else backend.zero_stages[0]
    longest = int(sampler.lengths.max())
    sizes = sizes_of(args.model, longest)
    profile = derive_model_profile(
        sizes,
        hosts,
        name=f"{name}-estimate",
        zero=zero,
        loss=loss,
        stack=backend.stack,
        longest=longest if backend.splits_experts else None,
    )
    usable, _ = apply_backend(profile, workload.gpus, args.execution, 1, args.trainer)
    reached = _find_longest(usable, workload)
    most = None
    if not backend.axes:  # more GPUs share the states, but no sequence
        most = _find_longest(usable, replace(workload, gpus=MOST_GPUS))
    if not reached:
        raise Infeasible(
            f"{args.model} does not fit on {workload.gpus} × {hardware.name}: no scheme has memory "
            "left for a sequence, with full recomputation. Add GPUs"
        )
    if reached < longest:
        fix = "or more GPUs"
        if most is not None and most < longest:
            fix = (
                f"or another --trainer: {args.trainer} keeps a sequence on one GPU, and on any "
                f"number of GPUs it holds at most {most}"
            )
        raise Infeasible(
            f"the longest sequence has {longest} tokens, but on {workload.gpus} GPUs {args.model} "
            f"holds {reached} with full recomputation. Give --max-len {reached} to truncate, {fix}"
        )
    stack = "" if backend.stack == DEFAULT_STACK else f", stack {backend.stack}"
    left_out = "".join(f"; left out: {part}" for part in sizes.left_out)
    return profile, (
        f"profile derived for {args.model} on {workload.gpus} × {hardware.name}, {loss} loss"
        f"{stack}: nothing was measured{left_out}"
    )


def _find_longest(profile: Profile, workload: Workload) -> int:
    """Find the longest sequence that a scheme of the profile holds; 0 if there is none."""
    models = (
        model
        for degree in profile.expert_degrees
        for model in workload.models(profile.at_expert_parallel(degree)).values()
    )
    return max((model.max_sequence for model in models), default=0)


def check_parts(folder: Path, data: str, profile: str | None) -> None:
    """Check that parts in a folder are the inputs, or an earlier run's. ``ValueError``."""
    of_run = (folder / "proposal.json").exists()
    for name, source in (("lengths.npy", data), ("profile.json", profile)):
        part = folder / name
        if part.exists() and not (of_run or _is_same(part, source)):
            raise ValueError(f"{part}: exists, and is of no earlier run. Name another folder")


def _is_same(path: Path, source: str | None) -> bool:
    return source is not None and path.resolve() == Path(source).resolve()


def write_parts(folder: Path, first: FirstProposal, lengths: npt.NDArray[np.integer]) -> None:
    """Write what plans were made from: lengths, the profile, the proposal."""
    from seqplan.api.cli.framework.output import write_profile
    from seqplan.costs.lengths import save_lengths
    from seqplan.plans.format.atomic_file import write_text

    save_lengths(folder / "lengths.npy", lengths)
    write_profile(folder / "profile.json", dict(first.profile.document))
    write_text(folder / "proposal.json", first.proposal.to_json())
