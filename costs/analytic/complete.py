"""Schemes that a measured profile lacks, derived from those it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.calibrate import Calibration, calibrate
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derived_scheme import (
    check_schemes,
    describe_buffer,
    fit_residuals,
    fit_terms,
    write_derived_entry,
)
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.memory import activation_bytes_per_token, count_gathered_bytes
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.architecture import Architecture
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.costs.profile_document import combine_modes
from seqplan.costs.profiled_scheme import ProfiledScheme
from seqplan.costs.scheme_rules import doubts
from seqplan.plans.recomputation import split_mode
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]

WORK = (
    *("matrix products", "memory-bound", "attention", "linear attention", "experts"),
    "head and loss",
)
"""Terms that one device has too and that grow with tokens: measurements give their speed."""

LEAST_WORK = 0.25
"""Share of a measured time that is work at least, however expensive links are."""


def complete(
    profile: Profile,
    cluster: ClusterHardware,
    schemes: Sequence[Scheme],
    *,
    sizes: Mapping[str, int] | None = None,
    longest: int = 131072,
) -> dict[str, Any]:
    """Add ``schemes`` to the profile's document, derived from those that were measured.

    T(l, P) = (T(l, M) − f − links(l, M)) · work(l, P) / work(l, M) + f · launch(P) / launch(M)
            + links(l, P)

    M is the measured scheme of P's layout ⟨tp, pp⟩ without Ulysses and ring; if only ⟨1,1,1,1⟩
    was measured, that. The measured time is scaled by the analytic model's work; links(l, P) is
    communication by the cluster's links; f is the part of the measured c that the model calls
    launch overhead, on a device as much slower or faster than the model as it is at ``longest``
    tokens, and is scaled by itself, because sharing work between devices does not make it less.
    If several schemes were measured, all terms are calibrated on them first (``calibrate``), and
    a layout that was not measured, or is doubtful, is the sum of the calibrated terms.

    Derived schemes that the profile has and ``schemes`` names are derived anew, each recomputation
    mode from its measurements. ``sizes``: of the model, if the profile does not state them.
    ``ValueError`` when nothing sound was measured, sizes are missing, a scheme cannot be run, or a
    mode offloads.
    """
    if offloading := [mode.name for mode in profile.modes if split_mode(mode.name)[1]]:
        raise ValueError(
            f"profile {profile.name}: its mode {offloading[0]} offloads, and derived schemes "
            "cannot follow from it. Complete a profile of modes without"
        )
    deployment = Deployment(
        cluster=cluster,
        sizes=_sizes(profile, sizes or {}),
        zero=profile.zero_stage,
        recompute=profile.modes[0].name,
    )
    unchanged = [e for e in profile.schemes if e.origin != "derived" or e.scheme not in schemes]
    missing = sorted(set(schemes) - {entry.scheme for entry in unchanged})
    if not missing:
        return dict(profile.document)
    if len(profile.modes) > 1:
        return _combine(
            profile,
            {
                mode.name: complete(
                    profile.keep_modes([mode.name]), cluster, schemes, sizes=sizes, longest=longest
                )
                for mode in profile.modes
            },
        )
    return _complete_mode(profile, deployment, unchanged, missing, longest)


def _combine(profile: Profile, completed: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Combine the documents that were completed for each mode; notes name theirs."""
    combined, _ = combine_modes(list(completed.values()))
    notes = dict.fromkeys(
        note.replace(_DERIVED, f"{_DERIVED} {name}:")
        for name, of_mode in completed.items()
        for note in of_mode.get("notes", ())
    )
    return {**combined, "residuals": profile.residuals, "notes": list(notes)}


def _complete_mode(
    profile: Profile,
    deployment: Deployment,
    unchanged: Sequence[ProfiledScheme],
    missing: Sequence[Scheme],
    longest: int,
) -> dict[str, Any]:
    """Add the ``missing`` schemes to the ``unchanged`` ones of a profile of one mode."""
    cluster, dense = deployment.cluster, deployment.sizes.architecture.dense
    check_schemes(deployment.sizes, cluster, missing, deployment.zero)
    measured = _sound(profile)
    calibration = None
    if any((entry.scheme.tp, entry.scheme.pp) != (1, 1) for entry in measured.values()):
        calibration = calibrate(deployment, list(measured.values()))
    source = _Source(deployment, measured, calibration, longest)
    fitted = {
        scheme: fit_terms(source.times, scheme, longest, packed=not dense) for scheme in missing
    }
    document = dict(profile.document)
    document["schemes"] = [
        *profile.entries_of(unchanged),
        *(
            write_derived_entry(
                scheme, {**latency.as_dict(), **describe_buffer(deployment, scheme)}
            )
            for scheme, (latency, _) in fitted.items()
        ),
    ]
    document["memory"] = _memory(profile, deployment, missing)
    errors = [errors for _, errors in fitted.values()]
    residuals = fit_residuals(errors, largest=not dense)
    how = "compute as measured on one device, communication analytic on"
    if calibration is not None:
        how = f"{calibration}; Ulysses and ring by the links of"
    document["notes"] = [
        *(note for note in document.get("notes", ()) if not note.startswith(_DERIVED)),
        f"{_DERIVED} {how} {_of_cluster(cluster)}; {residuals}",
        *deployment.notes,
    ]
    return document


def _of_cluster(cluster: ClusterHardware) -> str:
    return f"{cluster.nodes} nodes of {cluster.gpus_per_node} {cluster.hardware.name}"


_DERIVED = "Schemes marked derived:"


def _sound(profile: Profile) -> dict[Scheme, ProfiledScheme]:
    """Collect measured schemes that are neither flagged nor doubtful."""
    doubtful = doubts(profile.schemes)
    sound = {
        entry.scheme: entry
        for entry in profile.schemes
        if entry.origin != "derived" and not entry.flag and entry.scheme not in doubtful
    }
    if not sound:
        raise ValueError(
            f"profile {profile.name}: has no measured scheme to derive others from; measure one, "
            "best tp1"
        )
    return sound


class _Source:
    """What derived times come from: the measured scheme of a layout, or calibrated terms."""

    def __init__(
        self,
        deployment: Deployment,
        measured: Mapping[Scheme, ProfiledScheme],
        calibration: Calibration | None,
        longest: int,
    ) -> None:
        self.deployment = deployment
        self.measured = measured
        self.calibration = calibration or Calibration({}, 0.0, 0.0, 0)
        self.longest = longest
        self.single = calibration is None

    def times(self, scheme: Scheme, micro_batches: Floats) -> Floats:
        """Compute the time (ms) of each micro-batch, lengths (micro-batches, sequences)."""
        base = Scheme() if self.single else Scheme(scheme.tp, scheme.pp)
        terms = self._terms(scheme, micro_batches)
        measured = self.measured.get(base)
        if measured is None:
            return self.calibration.total(terms)
        alone = self._terms(base, micro_batches)
        far = self._terms(base, np.array([[float(self.longest)]]))
        slower = measured.latency.micro_batch_ms([self.longest]) / float(
            self.calibration.total(far)[0]
        )
        fixed = min(measured.latency.c, slower * float(self._part(far, ("launch",))[0]))
        work, work_alone = (self._part(of, WORK) for of in (terms, alone))
        links = self.calibration.total(alone) - work_alone - self._part(alone, ("launch",))
        whole = measured.latency.work_ms(micro_batches).sum(axis=-1) + measured.latency.c - fixed
        device_ms = whole if self.single else np.maximum(whole - links, LEAST_WORK * whole)
        device_ms = device_ms * work / work_alone + fixed * terms["launch"] / alone["launch"]
        return np.asarray(
            device_ms + self.calibration.total(terms) - work - self._part(terms, ("launch",))
        )

    def _terms(self, scheme: Scheme, micro_batches: Floats) -> dict[str, Floats]:
        dp = max(1, self.deployment.cluster.gpus // scheme.gpus)
        return stage_terms(self.deployment, scheme, micro_batches, dp)

    def _part(self, terms: Mapping[str, Floats], names: Sequence[str]) -> Floats:
        return self.calibration.total({name: terms[name] for name in names if name in terms})


def _memory(profile: Profile, deployment: Deployment, missing: Sequence[Scheme]) -> dict[str, Any]:
    """Add activation bytes of tp degrees that were not measured, from the nearest below."""
    memory = dict(profile.document["memory"])
    activation = dict(memory["activation_bytes_per_token"])
    known = sorted(int(tp) for tp in activation)
    for tp in sorted({scheme.tp for scheme in missing} - set(known)):
        near = max((other for other in known if other < tp), default=known[0])
        more = _activation(deployment, tp) - _activation(deployment, near)
        activation[str(tp)] = activation[str(near)] + more
    memory["activation_bytes_per_token"] = activation
    return memory


def _activation(deployment: Deployment, tp: int) -> float:
    whole = activation_bytes_per_token(deployment, tp)
    return whole + count_gathered_bytes(deployment.sizes.hidden, tp)


def _sizes(profile: Profile, others: Mapping[str, int]) -> ModelSizes:
    """Return the profile's sizes; ``others`` if it does not state one.

    ``ValueError`` if they are of another model. A vocabulary may differ, as it is often padded;
    the profile's counts.
    """
    shape = profile.shape
    stated = {name: getattr(shape, name) for name in SIZES}
    for name, value in stated.items():
        other = others.get(name, value)
        if name != "vocab" and value is not None and value != other:
            raise ValueError(
                f"profile {profile.name}: its model has {name} {value}, not {other}; give the "
                "sizes of the profile's model"
            )
    architecture, _ = Architecture.split(others)
    if not architecture.dense and architecture != shape.architecture:
        derived = shape.architecture.as_dict() or "nothing beyond a dense decoder"
        raise ValueError(
            f"profile {profile.name}: its model has {derived}, not {architecture.as_dict()}; give "
            "the sizes of the profile's model"
        )
    sizes = {n: others.get(n) if value is None else value for n, value in stated.items()}
    if missing := [name for name, value in sizes.items() if value is None]:
        raise ValueError(
            f"profile {profile.name}: does not state the model's {', '.join(missing)}. Give a "
            "model that does"
        )
    return ModelSizes(
        **sizes,  # type: ignore[arg-type]
        head_dim=shape.head_dim,
        tied=shape.tied,
        architecture=shape.architecture,
    )
