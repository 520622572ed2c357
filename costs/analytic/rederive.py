"""A profile of the analytic model, derived again for another ZeRO stage and other schemes."""

from __future__ import annotations

from collections.abc import Callable

from seqplan.costs.analytic.deployment import LOSSES, Deployment
from seqplan.costs.analytic.derive import derive_profile, describe_degrees
from seqplan.costs.analytic.expert_parallel import ExpertParallelism
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.gpus.profiled_device import hardware_of
from seqplan.costs.analytic.stacks import DEFAULT_STACK, STACKS
from seqplan.costs.default_schemes import LAYOUTS, list_default_schemes
from seqplan.costs.profile import Profile
from seqplan.plans.scheme import Scheme


def rederive_profile(
    profile: Profile, zero: int, gpus: int, runs: Callable[[Scheme], bool]
) -> Profile | None:
    """Derive ``profile`` for ZeRO stage ``zero`` on ``gpus``.

    ``runs``: whether a scheme is wanted. None unless the analytic model made the whole profile, at
    settings that it states.
    """
    device, sizes = hardware_of(profile), profile.shape.sizes
    if device is None or device.name != profile.hardware.lower() or sizes is None:
        return None
    per_node = min(gpus, profile.gpus_per_node)
    deployment = Deployment(
        cluster=ClusterHardware(device, -(-gpus // per_node), per_node),
        sizes=sizes,
        zero=zero,
        recompute=profile.modes[0].name,
        stack=next(
            (stack for stack in STACKS if f"stack {stack}" in profile.source), DEFAULT_STACK
        ),
        loss=next((loss for loss in LOSSES if f"loss {loss}" in profile.source), "whole"),
    )
    degrees = profile.expert_degrees
    if degrees != (1,) and describe_degrees(ExpertParallelism(), degrees) not in (
        profile.document.get("notes", ())
    ):
        return None
    derived = all(entry.origin == "derived" for entry in profile.schemes)
    if not derived or f"{deployment.description}; nothing was measured" not in profile.source:
        return None
    schemes = [
        scheme
        for scheme in list_default_schemes(
            sizes.shape,
            gpus,
            profile.gpus_per_node,
            memory_bytes=device.memory_bytes,
            layouts=[(1, 1)] if zero == 3 else LAYOUTS,
        )
        if runs(scheme) and scheme.tp <= profile.gpus_per_node
    ]
    document = derive_profile(
        deployment,
        schemes,
        name=f"{profile.name}-zero{zero}",
        modes=[mode.name for mode in profile.modes],
        expert_degrees=degrees,
    )
    return Profile.from_document(document, profile.name)
