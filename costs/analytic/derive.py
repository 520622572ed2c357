"""Whole profiles from the analytic model, of what nobody measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import NO_EXPERT_PARALLELISM, Deployment
from seqplan.costs.analytic.derived_scheme import (
    check_schemes,
    describe_buffer,
    fit_residuals,
    fit_terms,
    write_derived_entry,
)
from seqplan.costs.analytic.expert_parallel import ExpertParallelism
from seqplan.costs.analytic.experts import SHARED_TERMS, block_problem, expert_terms
from seqplan.costs.analytic.gpus.hardware import Hardware
from seqplan.costs.analytic.gpus.profiled_device import list_values
from seqplan.costs.analytic.memory import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    count_expert_bytes,
    count_fixed_buffer_bytes,
    count_fixed_loss_bytes,
    count_gathered_bytes,
    count_host_bytes,
    count_kept_bytes,
    count_transient_bytes,
    state_bytes,
)
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.fit.latency_fit import Errors
from seqplan.costs.latency import Latency
from seqplan.costs.profile_document import keep_modes
from seqplan.costs.profile_reader import COMPARED_LENGTH, HOST_BYTES
from seqplan.costs.profiled_scheme import PROFILE_SCHEMA, SchemeKey
from seqplan.costs.scheme_rules import expert_problem
from seqplan.plans.percent import percent
from seqplan.plans.recomputation import rank_mode
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]
Fitted = tuple[Latency, Errors]

FORWARD_FRACTION = 1 / 3
"""Forward's share of forward and backward if nothing is recomputed."""


def derive_profile(
    deployment: Deployment,
    schemes: Sequence[Scheme],
    *,
    name: str,
    longest: int = 131072,
    modes: Sequence[str] = (),
    expert_degrees: Sequence[int] = (1,),
) -> dict[str, Any]:
    """Derive the profile document (schema 2) of a model on a cluster, every scheme ``derived``.

    ``modes``: recomputation modes, that of the deployment alone if empty. ``longest``: tokens up to
    which T(l) is fitted. Parameter traffic of ZeRO 1 and 2 is left to the sync, as in measured
    profiles; ZeRO 3 gathers over the whole cluster. MaxLen counts logits on every stage, which is
    above the need of a first stage. ``expert_degrees``: of expert parallelism, of which each scheme
    has an entry if its stages are whole blocks. ``ValueError`` for a scheme or a degree that the
    model or the cluster cannot run, or none.
    """
    degrees = _check_degrees(deployment, schemes, expert_degrees)
    check_schemes(deployment.sizes, deployment.cluster, schemes, deployment.zero)
    options = deployment.experts
    deployment = _with_degree(deployment, options, 1)
    by_mode = {
        mode: deployment.with_mode(mode)
        for mode in sorted(modes or (deployment.mode,), key=rank_mode)
    }
    keys = [
        (scheme, degree)
        for scheme in sorted(set(schemes))
        for degree in degrees
        if block_problem(_with_degree(deployment, options, degree), scheme) is None
    ]
    fitted: dict[str, dict[SchemeKey, Fitted]] = {mode: {} for mode in by_mode}
    for scheme, degree in keys:  # modes of a scheme one after the other: they share times
        for mode, chosen in by_mode.items():
            at_degree = _with_degree(chosen, options, degree)
            fitted[mode][scheme, degree] = _fit_entry(at_degree, scheme, longest)
    widest = {mode: _with_degree(chosen, options, max(degrees)) for mode, chosen in by_mode.items()}
    described = _describe_modes(widest, sorted({scheme.tp for scheme in schemes}), fitted)
    notes = _list_notes(list(by_mode.values()), options, degrees)
    hardware = deployment.cluster.hardware
    document = {
        "schema": PROFILE_SCHEMA,
        "name": name,
        "source": _describe_source(deployment),
        "residuals": _describe_errors(hardware, fitted),
        "hardware": {
            "gpu": hardware.name.upper(),
            "gpus_per_node": deployment.cluster.gpus_per_node,
            **({"values": values} if (values := list_values(hardware)) else {}),
        },
        "model": deployment.sizes.as_dict(),
        **({"notes": notes} if notes else {}),
        "zero_stage": deployment.zero,
        "modes": described,
        "memory": _describe_memory(
            deployment,
            experts_apart=max(degrees) > 1,
            offloads=any(HOST_BYTES in mode for mode in described),
        ),
        "schemes": [_describe_entry(key, described, fitted, by_mode) for key in keys],
    }
    return keep_modes(document, [mode["name"] for mode in described])


def _list_notes(
    deployments: Sequence[Deployment], options: ExpertParallelism, degrees: Sequence[int]
) -> list[str]:
    """List the notes of deployments, each once, and that of degrees of experts."""
    notes = list(dict.fromkeys(note for chosen in deployments for note in chosen.notes))
    if max(degrees) == 1:
        return notes
    kept = [note for note in notes if note != deployments[0].expert_note]
    return [*kept, describe_degrees(options, degrees)]


def _describe_errors(hardware: Hardware, fitted: Mapping[str, Mapping[SchemeKey, Fitted]]) -> str:
    """State how well coefficients fit, and whether the rates were compared."""
    errors = [errors for of_mode in fitted.values() for _, errors in of_mode.values()]
    unchecked = f"; efficiencies of {hardware.name} unchecked" if hardware.unchecked else ""
    return f"derived: {fit_residuals(errors, largest=True)}{unchecked}"


def _describe_entry(
    key: SchemeKey,
    modes: Sequence[Mapping[str, Any]],
    fitted: Mapping[str, Mapping[SchemeKey, Fitted]],
    by_mode: Mapping[str, Deployment],
) -> dict[str, Any]:
    """Write a scheme, with its coefficients in each of the profile's ``modes``."""
    scheme, degree = key
    names = [mode["name"] for mode in modes]
    coefficients = {
        name: {**fitted[name][key][0].as_dict(), **describe_buffer(by_mode[name], scheme)}
        for name in names
    }
    split = {"expert_parallel": degree} if degree > 1 else {}
    return write_derived_entry(scheme, {**split, "modes": coefficients})


def describe_degrees(experts: ExpertParallelism, degrees: Sequence[int]) -> str:
    """Describe what entries of several degrees of expert parallelism assume."""
    listed = ", ".join(map(str, degrees))
    hidden = (
        f"{percent(experts.overlap, 0)} of it hidden" if experts.overlap else "none of it hidden"
    )
    return (
        f"unchecked: experts. expert_parallel {listed}: above 1 tokens reach their experts by "
        f"{experts.dispatcher}, {hidden}, and the fullest rank of experts has "
        f"{experts.imbalance:g} times the mean of tokens (assumed)"
    )


def _check_degrees(
    deployment: Deployment, schemes: Sequence[Scheme], degrees: Sequence[int]
) -> list[int]:
    """Return the degrees ascending; ``ValueError`` for one that the model or cluster cannot run."""
    gpus, shape = deployment.cluster.gpus, deployment.sizes.shape
    for degree in degrees:
        if problem := expert_problem(degree, shape):
            raise ValueError(problem)
        chosen = _with_degree(deployment, deployment.experts, degree)
        blocks = [block_problem(chosen, scheme) for scheme in schemes]
        if schemes and None not in blocks:
            raise ValueError(f"expert_parallel = {degree}: {blocks[0]} of {gpus}. Add nodes")
    return sorted(set(degrees))


def _with_degree(deployment: Deployment, options: ExpertParallelism, degree: int) -> Deployment:
    """Return the deployment with a degree of expert parallelism, above 1 by ``options``."""
    experts = replace(options, degree=degree) if degree > 1 else NO_EXPERT_PARALLELISM
    return replace(deployment, experts=experts)


def _fit_entry(deployment: Deployment, scheme: Scheme, longest: int) -> Fitted:
    """Fit the coefficients of a scheme, ``b_shared`` to the terms that blocks share."""
    packed = not deployment.sizes.architecture.dense
    latency, errors = fit_terms(partial(_stage_ms, deployment), scheme, longest, packed=packed)
    if deployment.experts.degree > 1:
        lengths = np.array([[longest / 2], [longest]])
        terms = expert_terms(
            deployment, scheme, float(deployment.stage_layers(scheme.pp)), lengths.sum(axis=-1)
        )
        half, whole = np.sum([terms[name] for name in SHARED_TERMS], axis=0)
        share = float(whole - half) / (longest / 2)
        latency = replace(latency, b_shared=min(share, latency.b))
    return latency, errors


def _stage_ms(deployment: Deployment, scheme: Scheme, micro_batches: Floats) -> Floats:
    """Time micro-batches on a stage (ms)."""
    dp = max(1, deployment.cluster.gpus // scheme.gpus)
    return np.asarray(
        np.sum(list(stage_terms(deployment, scheme, micro_batches, dp).values()), axis=0)
    )


def _describe_source(deployment: Deployment) -> str:
    cluster = deployment.cluster
    return (
        f"derived: analytic model of {cluster.hardware.name}, {cluster.nodes} nodes of "
        f"{cluster.gpus_per_node} GPUs, {deployment.description}; nothing was measured. "
        f"Hardware: {cluster.hardware.source}"
    )


def _describe_memory(
    deployment: Deployment, *, experts_apart: bool, offloads: bool
) -> dict[str, Any]:
    """Write the bytes of a rank, with the state of experts apart if ``experts_apart``."""
    sharded, layers, embeddings = state_bytes(deployment)
    experts = count_expert_bytes(deployment) if experts_apart else 0.0
    capacity = deployment.cluster.hardware.memory_bytes
    return {
        "capacity_bytes": float(capacity),
        "context_bytes": CONTEXT_BYTES + count_fixed_buffer_bytes(deployment, Scheme()),
        "margin_bytes": FRAGMENTATION * capacity,
        "sharded_state_bytes": [[None, sharded]],
        "resident_layer_bytes": layers - experts,
        **({"resident_expert_bytes": experts} if experts else {}),
        "resident_embedding_bytes": embeddings,
        **({"loss_bytes": loss} if (loss := count_fixed_loss_bytes(deployment)) else {}),
        **({"host_memory_bytes": deployment.host_memory_bytes} if offloads else {}),
    }


def _describe_modes(
    by_mode: Mapping[str, Deployment],
    widths: Sequence[int],
    fitted: Mapping[str, Mapping[SchemeKey, Fitted]],
) -> list[dict[str, Any]]:
    """Write the modes, those that keep most bytes first.

    Of equal ones the one that recomputes less is first. ``by_mode``: ascending by what they
    recompute; ``widths``: degrees of tensor parallelism.
    """
    plain = fitted[next(iter(by_mode))]
    described = [
        _describe_mode(chosen, widths, fitted[mode], plain) for mode, chosen in by_mode.items()
    ]
    return sorted(described, key=lambda mode: -mode["kept_bytes_per_token"][str(widths[0])])


def _describe_mode(
    deployment: Deployment,
    widths: Sequence[int],
    fitted: Mapping[SchemeKey, Fitted],
    plain: Mapping[SchemeKey, Fitted],
) -> dict[str, Any]:
    """Write a recomputation mode as the profile's document has it.

    Forward takes as long as in ``plain``, which recomputes least.
    """
    key = min(fitted)
    time, least = (of[key][0].micro_batch_ms([COMPARED_LENGTH]) for of in (fitted, plain))
    hidden = deployment.sizes.hidden
    host = {str(tp): count_host_bytes(deployment, tp) for tp in widths}
    return {
        "name": deployment.mode,
        "forward_fraction": round(FORWARD_FRACTION * least / time, 4),
        "kept_bytes_per_token": {str(tp): count_kept_bytes(deployment, tp) for tp in widths},
        "transient_bytes_per_token": {
            str(tp): count_transient_bytes(deployment, tp) + count_gathered_bytes(hidden, tp)
            for tp in widths
        },
        **({HOST_BYTES: host} if deployment.offload_layers else {}),
    }
