"""Whole profiles from the analytic model, of what nobody measured."""

from __future__ import annotations

from collections.abc import Sequence
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
    activation_bytes_per_token,
    state_bytes,
)
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.profiled_scheme import PROFILE_SCHEMA
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]


def derive_profile(
    deployment: Deployment, schemes: Sequence[Scheme], *, name: str, longest: int = 131072
) -> dict[str, Any]:
    """Derive the profile document (schema 2) of a model on a cluster, every scheme ``derived``.

    ``longest``: tokens up to which T(l) is fitted. Parameter traffic of ZeRO 1 and 2 is left to the
    sync, as in measured profiles; ZeRO 3 gathers over the whole cluster. MaxLen counts logits
    on every stage, which is above the need of a first stage. ``ValueError`` for a scheme that the
    model or the cluster cannot run, or none.
    """
    check_schemes(deployment.sizes, deployment.cluster, schemes, deployment.zero)
    cluster, sizes = deployment.cluster, deployment.sizes

    def times(scheme: Scheme, micro_batches: Floats) -> Floats:
        dp = max(1, cluster.gpus // scheme.gpus)
        terms = stage_terms(deployment, scheme, micro_batches, dp)
        return np.asarray(np.sum(list(terms.values()), axis=0))

    fitted = {
        scheme: fit_terms(times, scheme, longest, packed=not sizes.architecture.dense)
        for scheme in sorted(set(schemes))
    }
    hardware, errors = cluster.hardware, [errors for _, errors in fitted.values()]
    notes = list(deployment.notes)
    sharded, layers, embeddings = state_bytes(deployment)
    return {
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
        "checkpointing": deployment.checkpointing,
        "memory": {
            "capacity_bytes": float(hardware.memory_bytes),
            "context_bytes": float(CONTEXT_BYTES),
            "margin_bytes": FRAGMENTATION * hardware.memory_bytes,
            "sharded_state_bytes": [[None, sharded]],
            "resident_layer_bytes": layers,
            "resident_embedding_bytes": embeddings,
            "activation_bytes_per_token": {
                str(tp): activation_bytes_per_token(deployment, tp)
                + count_gathered_bytes(sizes.hidden, tp)
                for tp in sorted({scheme.tp for scheme in schemes})
            },
        },
        "schemes": [
            write_derived_entry(scheme, latency) for scheme, (latency, _) in fitted.items()
        ],
    }
