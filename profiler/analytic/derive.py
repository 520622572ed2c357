"""Profiles from the analytic model: whole ones, and schemes that a measured profile lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.plans.scheme import Scheme
from seqplan.profiler.analytic.hardware import ClusterHardware, Hardware
from seqplan.profiler.analytic.memory import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    activation_bytes_per_token,
    state_bytes,
)
from seqplan.profiler.analytic.terms import Deployment, stage_terms
from seqplan.profiler.fit.latency_fit import Errors, Observed, fit_latency
from seqplan.profiler.latency import Latency
from seqplan.profiler.model_sizes import SIZES, ModelSizes
from seqplan.profiler.profile import PROFILE_SCHEMA, Profile
from seqplan.profiler.scheme_rules import scheme_problem

Floats = npt.NDArray[np.float64]

SHORTEST, POINTS = 128, 25
"""Lengths that coefficients are fitted to: from SHORTEST tokens to the longest, geometrically."""

WORK = ("matrix products", "memory-bound", "attention", "head and loss")
"""Terms that one device has too and that grow with tokens: measuring it says how fast they are."""


def derive_profile(
    deployment: Deployment, schemes: Sequence[Scheme], *, name: str, longest: int = 131072
) -> dict[str, Any]:
    """Derive the profile document (schema 1) of a model on a cluster, every scheme ``derived``.

    ``longest``: tokens up to which T(l) is fitted. Parameter traffic of ZeRO 1 and 2 is left to the
    exchange, as in measured profiles; ZeRO 3 gathers over the whole cluster. MaxLen counts logits
    on every stage, which is above what a first stage needs. ``ValueError`` for a scheme that the
    model or the cluster cannot run, or none.
    """
    _check(deployment.sizes, deployment.cluster, schemes, deployment.zero)
    cluster, sizes = deployment.cluster, deployment.sizes

    def times(scheme: Scheme, lengths: Floats) -> Floats:
        dp = max(1, cluster.gpus // scheme.gpus)
        return _total(stage_terms(deployment, scheme, lengths[:, None], dp))

    fitted = {scheme: _fit(times, scheme, longest) for scheme in sorted(set(schemes))}
    hardware = cluster.hardware
    sharded, layers, embeddings = state_bytes(deployment)
    return {
        "schema": PROFILE_SCHEMA,
        "name": name,
        "source": f"derived: analytic model of {hardware.name}, {cluster.nodes} nodes of "
        f"{cluster.gpus_per_node} GPUs; nothing was measured. Hardware: {hardware.source}",
        "residuals": "derived: "
        + _residuals([errors for _, errors in fitted.values()])
        + (f"; efficiencies of {hardware.name} unchecked" if hardware.unchecked else ""),
        "hardware": {"gpu": hardware.name.upper(), "gpus_per_node": cluster.gpus_per_node},
        "model": sizes.as_dict(),
        **_notes(hardware),
        "zero_stage": deployment.zero,
        "checkpointing": deployment.checkpointing,
        "memory": {
            "capacity_bytes": float(hardware.memory_bytes),
            "context_bytes": float(CONTEXT_BYTES),
            "margin_bytes": FRAGMENTATION * hardware.memory_bytes,
            "sharded_state_bytes": [[None, sharded]],
            "resident_layer_bytes": layers,
            "resident_embedding_bytes": embeddings,
            "activation_bytes_per_token": {
                str(tp): activation_bytes_per_token(sizes, deployment.checkpointing, tp)
                + _gathered_bytes(sizes.hidden, tp)
                for tp in sorted({scheme.tp for scheme in schemes})
            },
        },
        "schemes": [_entry(scheme, latency) for scheme, (latency, _) in fitted.items()],
    }


def complete(
    profile: Profile, cluster: ClusterHardware, schemes: Sequence[Scheme], *, longest: int = 131072
) -> dict[str, Any]:
    """Add ``schemes`` that it lacks to the profile's document, derived from its ⟨1,1,1,1⟩.

    T(l, P) = (T(l, 1) − f) · work(l, P) / work(l, 1) + f · launch(P) / launch(1) + links(l, P)

    What was measured of one device is scaled by the analytic model's work; links(l, P) is
    communication by the cluster's links. f is the part of the measured c that the model calls
    launch overhead, on a device as much slower or faster than the model as it is at ``longest``
    tokens. It is scaled by itself, because sharing work between devices does not make it less.
    ``ValueError`` when the profile has no ⟨1,1,1,1⟩, does not state the model's sizes, or cannot
    run a scheme.
    """
    single = profile.by_scheme.get(Scheme())
    if single is None:
        raise ValueError(
            f"profile {profile.name}: has no scheme tp1 to derive others from; measure it first"
        )
    deployment = Deployment(
        cluster=cluster,
        sizes=_sizes(profile),
        zero=profile.zero_stage,
        checkpointing=profile.checkpointing,
    )
    missing = sorted(set(schemes) - set(profile.by_scheme))
    if not missing:
        return dict(profile.document)
    _check(deployment.sizes, cluster, missing, deployment.zero)

    far = stage_terms(deployment, Scheme(), [longest])
    slower = single.latency.micro_batch_ms([longest]) / float(_total(far))
    fixed = min(single.latency.c, slower * float(far["launch"]))

    def times(scheme: Scheme, lengths: Floats) -> Floats:
        dp = max(1, cluster.gpus // scheme.gpus)
        alone = stage_terms(deployment, Scheme(), lengths[:, None])
        terms = stage_terms(deployment, scheme, lengths[:, None], dp)
        work, work_alone = (_total({name: of[name] for name in WORK}) for of in (terms, alone))
        measured = single.latency.work_ms(lengths) + single.latency.c
        device_ms = (measured - fixed) * work / work_alone + fixed * terms["launch"] / alone[
            "launch"
        ]
        return device_ms + _total(terms) - work - terms["launch"]

    fitted = {scheme: _fit(times, scheme, longest) for scheme in missing}
    document = dict(profile.document)
    document["schemes"] = [
        *document["schemes"],
        *(_entry(scheme, latency) for scheme, (latency, _) in fitted.items()),
    ]
    memory = dict(document["memory"])
    activation = dict(memory["activation_bytes_per_token"])
    for tp in sorted({scheme.tp for scheme in missing}):
        more = activation_bytes_per_token(deployment.sizes, deployment.checkpointing, tp)
        more -= activation_bytes_per_token(deployment.sizes, deployment.checkpointing, 1)
        more += _gathered_bytes(deployment.sizes.hidden, tp)
        activation.setdefault(str(tp), activation["1"] + more)
    memory["activation_bytes_per_token"] = activation
    document["memory"] = memory
    document["notes"] = [
        *document.get("notes", ()),
        f"Schemes marked derived: compute as measured on one device, communication analytic on "
        f"{cluster.nodes} nodes of {cluster.gpus_per_node} {cluster.hardware.name}; "
        + _residuals([errors for _, errors in fitted.values()]),
        *_notes(cluster.hardware).get("notes", ()),
    ]
    return document


def _fit(
    times: Callable[[Scheme, Floats], Floats], scheme: Scheme, longest: int
) -> tuple[Latency, Errors]:
    if longest < 4 * SHORTEST:
        raise ValueError(f"longest {longest}: wants at least {4 * SHORTEST} tokens")
    least = max(SHORTEST, 2 * scheme.stage_gpus)
    lengths = np.unique(np.geomspace(least, max(longest, 16 * least), POINTS).round())
    observed = [
        Observed((int(length),), float(ms))
        for length, ms in zip(lengths, times(scheme, lengths), strict=True)
    ]
    fit = fit_latency(observed, (), ())
    return fit.latency, fit.in_sample


def _total(terms: dict[str, Floats]) -> Floats:
    total: Floats = np.sum(list(terms.values()), axis=0)
    return total


def _residuals(errors: Sequence[Errors]) -> str:
    medians = [of_scheme.median for of_scheme in errors if of_scheme.median is not None]
    largest = [of_scheme.p90 for of_scheme in errors if of_scheme.p90 is not None]
    return (
        f"a·l² + b·l + c is within {max(medians):.1%} (median) and {max(largest):.1%} (p90) of the "
        "analytic terms in the worst scheme; how far those are from devices: seqplan validate-model"
    )


def _notes(hardware: Hardware) -> dict[str, list[str]]:
    """The field of a profile that warns of what is unchecked; none where everything is checked."""
    return {} if hardware.warning is None else {"notes": [hardware.warning]}


def _entry(scheme: Scheme, latency: Latency) -> dict[str, Any]:
    degrees = {axis: degree for axis, degree in scheme.as_dict().items() if degree > 1}
    return {**degrees, "a": latency.a, "b": latency.b, "c": latency.c, "origin": "derived"}


def _gathered_bytes(hidden: int, tp: int) -> float:
    """Count a tp block's gathered input, per token and before division over tp·sp."""
    return 0.0 if tp == 1 else 2.0 * hidden * tp


def _sizes(profile: Profile) -> ModelSizes:
    shape = profile.shape
    sizes = {name: getattr(shape, name) for name in SIZES}
    if missing := [name for name, value in sizes.items() if value is None]:
        raise ValueError(f"profile {profile.name}: does not state the model's {', '.join(missing)}")
    return ModelSizes(**sizes, head_dim=shape.head_dim, tied=shape.tied)


def _check(
    sizes: ModelSizes, cluster: ClusterHardware, schemes: Sequence[Scheme], zero: int
) -> None:
    if not schemes:
        raise ValueError("no scheme to derive")
    for scheme in schemes:
        reason = scheme_problem(scheme, sizes.shape)
        if scheme.gpus > cluster.gpus:
            reason = f"needs {scheme.gpus} GPUs, the cluster has {cluster.gpus}"
        elif zero == 3 and (scheme.tp > 1 or scheme.pp > 1):
            reason = "under ZeRO-3 a profile's schemes have tp = pp = 1"
        if reason:
            raise ValueError(f"{scheme}: {reason}")
