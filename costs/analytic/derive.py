"""Whole profiles from the analytic model, of what nobody measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derived_scheme import (
    check_schemes,
    count_gathered_bytes,
    fit_residuals,
    fit_terms,
    write_derived_entry,
)
from seqplan.costs.analytic.memory import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    count_fixed_loss_bytes,
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
from seqplan.costs.profiled_scheme import PROFILE_SCHEMA
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
) -> dict[str, Any]:
    """Derive the profile document (schema 2) of a model on a cluster, every scheme ``derived``.

    ``modes``: recomputation modes, that of the deployment alone if empty. ``longest``: tokens up to
    which T(l) is fitted. Parameter traffic of ZeRO 1 and 2 is left to the sync, as in measured
    profiles; ZeRO 3 gathers over the whole cluster. MaxLen counts logits on every stage, which is
    above the need of a first stage. ``ValueError`` for a scheme that the model or the cluster
    cannot run, or none.
    """
    check_schemes(deployment.sizes, deployment.cluster, schemes, deployment.zero)
    cluster, sizes = deployment.cluster, deployment.sizes
    by_mode = {
        mode: deployment.with_mode(mode)
        for mode in sorted(modes or (deployment.mode,), key=rank_mode)
    }
    fitted = {
        mode: {
            scheme: fit_terms(
                partial(_stage_ms, chosen),
                scheme,
                longest,
                packed=not sizes.architecture.dense,
            )
            for scheme in sorted(set(schemes))
        }
        for mode, chosen in by_mode.items()
    }
    widths = sorted({scheme.tp for scheme in schemes})
    described = [
        _describe_mode(chosen, widths, fitted[mode], fitted[next(iter(by_mode))])
        for mode, chosen in by_mode.items()
    ]
    # Those that keep most first; of two that keep as much the one that recomputes less.
    first = str(widths[0])
    described.sort(key=lambda mode: -mode["kept_bytes_per_token"][first])
    offloads = any(HOST_BYTES in mode for mode in described)
    hardware = cluster.hardware
    errors = [errors for of_mode in fitted.values() for _, errors in of_mode.values()]
    notes = list(dict.fromkeys(note for chosen in by_mode.values() for note in chosen.notes))
    sharded, layers, embeddings = state_bytes(deployment)
    document = {
        "schema": PROFILE_SCHEMA,
        "name": name,
        "source": f"derived: analytic model of {hardware.name}, {cluster.nodes} nodes of "
        f"{cluster.gpus_per_node} GPUs, {deployment.description}; nothing was measured. "
        f"Hardware: {hardware.source}",
        "residuals": "derived: "
        + fit_residuals(errors, largest=True)
        + (f"; efficiencies of {hardware.name} unchecked" if hardware.unchecked else ""),
        "hardware": {"gpu": hardware.name.upper(), "gpus_per_node": cluster.gpus_per_node},
        "model": sizes.as_dict(),
        **({"notes": notes} if notes else {}),
        "zero_stage": deployment.zero,
        "modes": described,
        "memory": {
            "capacity_bytes": float(hardware.memory_bytes),
            "context_bytes": float(CONTEXT_BYTES),
            "margin_bytes": FRAGMENTATION * hardware.memory_bytes,
            "sharded_state_bytes": [[None, sharded]],
            "resident_layer_bytes": layers,
            "resident_embedding_bytes": embeddings,
            **({"loss_bytes": loss} if (loss := count_fixed_loss_bytes(deployment)) else {}),
            **({"host_memory_bytes": deployment.host_memory_bytes} if offloads else {}),
        },
        "schemes": [
            write_derived_entry(
                scheme,
                {
                    "modes": {
                        mode["name"]: fitted[mode["name"]][scheme][0].as_dict()
                        for mode in described
                    }
                },
            )
            for scheme in sorted(set(schemes))
        ],
    }
    return keep_modes(document, [mode["name"] for mode in described])


def _stage_ms(deployment: Deployment, scheme: Scheme, micro_batches: Floats) -> Floats:
    """Time micro-batches on a stage (ms)."""
    dp = max(1, deployment.cluster.gpus // scheme.gpus)
    return np.asarray(
        np.sum(list(stage_terms(deployment, scheme, micro_batches, dp).values()), axis=0)
    )


def _describe_mode(
    deployment: Deployment,
    widths: Sequence[int],
    fitted: Mapping[Scheme, Fitted],
    plain: Mapping[Scheme, Fitted],
) -> dict[str, Any]:
    """Write a recomputation mode as the profile's document has it.

    Forward takes as long as in ``plain``, which recomputes least.
    """
    scheme = min(fitted)
    time, least = (of[scheme][0].micro_batch_ms([COMPARED_LENGTH]) for of in (fitted, plain))
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
