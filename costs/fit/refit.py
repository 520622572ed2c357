"""The refit of a profile's coefficients to step times that came back from training."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seqplan.costs.fit.correction import (
    CommonFactor,
    DegreeOverhead,
    DegreeTimes,
    find_overhead,
    split_halves,
)
from seqplan.costs.fit.latency_fit import Errors, Observed, features, fit_latency, times
from seqplan.costs.fit.measurements import MeasurementError, MixedPipeline
from seqplan.costs.latency import Latency
from seqplan.costs.profile import Profile
from seqplan.costs.profile_document import scheme_of
from seqplan.costs.profiled_scheme import SHARED, ProfiledScheme
from seqplan.plans.percent import count_of, percent
from seqplan.plans.scheme import Scheme

LEAST_TO_SCALE, LEAST_TO_FIT = 8, 40
"""Pipelines measured before a scheme is scaled by one factor, and before all three are fitted."""

LEAST_FACTOR, MOST_FACTOR = 0.1, 10.0
"""Measured over predicted times of one device; further off, they have another unit or profile."""


@dataclass(frozen=True, slots=True)
class Refitted:
    """Measured errors of one scheme, before and after the refit.

    ``before``: the profile's errors on all of them; ``after``: the new coefficients' errors on the
    half that they were not made from. ``how``: ``kept``, ``scaled`` or ``fitted``, and why; or
    ``extrapolated``, by the factor of the measured schemes. ``modes``: new coefficients of each
    recomputation mode, ``latency`` then of the one that keeps least.
    """

    scheme: Scheme
    before: Errors
    after: Errors
    how: str
    reason: str
    latency: Latency
    modes: Mapping[str, Latency] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RefittedProfile:
    """Results for a profile's schemes: the measured ones first, then all others.

    ``common``: the factor of the others; None if no measured scheme was corrected, and
    then ``schemes`` are the measured ones alone. ``overhead``: of the others in place of it, if the
    measured schemes show one that grows with ranks.
    """

    schemes: tuple[Refitted, ...]
    common: CommonFactor | None
    overhead: DegreeOverhead | None = None


def refit(latency: Latency, scheme: Scheme, samples: Sequence[Observed]) -> Refitted:
    """Find new coefficients of a scheme where the measurements bear them, and better ones only.

    Half of the samples are held out. All three coefficients are fitted if there are enough
    samples and that predicts the held-out ones better than one common factor does.
    """
    before = _errors(latency, samples)
    few = Errors(0, None, None, None)
    if len(samples) < LEAST_TO_SCALE:
        reason = f"{len(samples)} pipelines measured, {LEAST_TO_SCALE} are needed"
        return Refitted(scheme, before, few, "kept", reason, latency)
    made_from, held_out = _halve(samples)
    factor = float(np.median(times(made_from) / _predict(latency, made_from)))
    scaled = latency.scale(factor)
    candidates = [
        ("kept", "predicts the held-out half best", latency),
        ("scaled", f"all coefficients times {factor:.3f}", scaled),
    ]
    if len(samples) >= LEAST_TO_FIT:
        fitted = _with_share(fit_latency(made_from, held_out, held_out).latency, latency)
        candidates.append(("fitted", f"to {len(made_from)} pipelines", fitted))
    how, reason, best = min(candidates, key=lambda candidate: _mean_error(candidate[2], held_out))
    return Refitted(scheme, before, _errors(best, held_out), how, reason, best)


def refit_profile(
    profile: Profile, by_scheme: Mapping[Scheme, Sequence[Observed]]
) -> RefittedProfile:
    """Correct the measured schemes by their samples, and scale all others as those.

    A device that is slower is slower for every scheme: coefficients that were merely not measured
    would look faster than those that were. So schemes with too few samples are scaled by the common
    factor of the others, the confirmed ones among them, unless their few samples are predicted
    better without. If the measured schemes have several degrees of ulysses·ring, and an overhead by
    degree predicts held-out pipelines better than factors, it corrects the others, and those
    measured ones that it predicts better. ``by_scheme``: of schemes that the profile has. With
    several recomputation modes a pipeline's time is of a mixture of them: all of a scheme are
    scaled by one factor.
    ``MeasurementError`` for a pipeline with a mode that the profile lacks, and for times that no
    device of the profile takes, ``ProfileError`` for one with several degrees of expert
    parallelism.
    """
    measured: dict[Scheme, Refitted] = {}
    factors = []
    models = {scheme: SchemeTimes.from_scheme(profile.by_scheme[scheme]) for scheme in by_scheme}
    for scheme, samples in by_scheme.items():
        models[scheme].check_modes(samples, profile.name)
    check_unit(
        np.concatenate(
            [times(samples) / models[of].predict(samples) for of, samples in by_scheme.items()]
        ),
        profile.name,
    )
    overhead = find_overhead(
        {scheme: models[scheme].list_times(samples) for scheme, samples in by_scheme.items()},
        LEAST_TO_SCALE,
    )
    for scheme, samples in sorted(by_scheme.items()):
        model = models[scheme]
        result = model.refit(samples)
        if overhead is not None and len(samples) >= LEAST_TO_SCALE:
            result = model.refit_by_overhead(samples, result, overhead)
        measured[scheme] = result
        if len(samples) >= LEAST_TO_SCALE:
            after = SchemeTimes(scheme, result.latency, result.modes)
            factors.append(float(after.predict(samples).sum() / model.predict(samples).sum()))
    if all(result.how == "kept" for result in measured.values()):
        return RefittedProfile(tuple(measured.values()), None)
    mean = math.exp(math.fsum(map(math.log, factors)) / len(factors))
    common = CommonFactor(mean, min(factors), max(factors))
    others = [entry.scheme for entry in profile.schemes if entry.scheme not in measured]
    schemes = [
        measured[scheme]
        if len(by_scheme.get(scheme, ())) >= LEAST_TO_SCALE
        else _extrapolate(
            SchemeTimes.from_scheme(profile.by_scheme[scheme]),
            by_scheme.get(scheme, ()),
            common,
            overhead,
        )
        for scheme in (*measured, *others)
    ]
    return RefittedProfile(tuple(schemes), common, overhead)


def check_unit(ratios: Any, profile: str) -> None:
    """Raise ``MeasurementError`` for times that are of another unit or device.

    ``ratios``: measured over predicted times.
    """
    factor = float(np.median(ratios))
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        raise MeasurementError(
            f"measured times are {factor:.3g} of what profile {profile} predicts: must be "
            f"{LEAST_FACTOR:g} to {MOST_FACTOR:g}. Give milliseconds, and the profile of these "
            "devices"
        )


@dataclass(frozen=True)
class SchemeTimes:
    """The coefficients of a scheme, of each mode if it has several."""

    scheme: Scheme
    latency: Latency
    modes: Mapping[str, Latency]

    @classmethod
    def from_scheme(cls, entry: ProfiledScheme) -> SchemeTimes:
        return cls(entry.scheme, entry.latency, entry.modes)

    def scale(self, factor: float) -> SchemeTimes:
        """Return all coefficients times a factor."""
        modes = {mode: latency.scale(factor) for mode, latency in self.modes.items()}
        return SchemeTimes(self.scheme, self.latency.scale(factor), modes)

    def correct(self, overhead: DegreeOverhead) -> SchemeTimes:
        """Return all coefficients with an overhead by degree."""
        modes = {
            mode: overhead.correct(latency, self.scheme) for mode, latency in self.modes.items()
        }
        return SchemeTimes(self.scheme, overhead.correct(self.latency, self.scheme), modes)

    def list_times(self, samples: Sequence[Observed]) -> DegreeTimes:
        """List what samples are predicted to take and took."""
        return DegreeTimes(
            self.scheme,
            self.predict(samples),
            self._predict_attention(samples),
            features(samples)[:, 2],
            times(samples),
        )

    def refit_by_overhead(
        self, samples: Sequence[Observed], result: Refitted, overhead: DegreeOverhead
    ) -> Refitted:
        """Return the coefficients with the overhead, or ``result``.

        Whichever predicts the held-out samples better.
        """
        _, held_out = _halve(samples)
        corrected = self.correct(overhead)
        now = SchemeTimes(self.scheme, result.latency, result.modes)
        if now.median_error(held_out) <= corrected.median_error(held_out):
            return result
        return Refitted(
            self.scheme,
            result.before,
            corrected.errors(held_out),
            "fitted",
            f"with all schemes: {overhead}",
            corrected.latency,
            corrected.modes,
        )

    def check_modes(self, samples: Sequence[Observed], profile: str) -> None:
        """Raise ``MeasurementError`` for a sample of other modes than the profile's."""
        for sample in samples:
            used = sample.by_mode.keys() if isinstance(sample, MixedPipeline) else set()
            if unknown := sorted(used - self.modes.keys()):
                raise MeasurementError(
                    f"{self.scheme}: planned with recomputation mode {unknown[0]}, which profile "
                    f"{profile} lacks. Give the profile that the plans were made with"
                )
            if self.modes and not used:
                raise MeasurementError(
                    f"{self.scheme}: planned without recomputation modes, profile {profile} has "
                    "several. Give the profile that the plans were made with"
                )

    def predict(self, samples: Sequence[Observed]) -> Any:
        """Compute the time of each sample (ms)."""
        if not self.modes:
            return _predict(self.latency, samples)
        mixed = [sample for sample in samples if isinstance(sample, MixedPipeline)]
        return np.array([sample.predict_ms(self.modes) for sample in mixed])

    def _predict_attention(self, samples: Sequence[Observed]) -> Any:
        """Compute the part of each sample's time that grows with the square of lengths (ms)."""
        if not self.modes:
            return self.latency.a * features(samples)[:, 0]
        return np.array(
            [
                sum(
                    self.modes[mode].a * sum(length**2 for length in lengths)
                    for mode, micro_batches in sample.by_mode.items()
                    for lengths in micro_batches
                )
                for sample in samples
                if isinstance(sample, MixedPipeline)
            ]
        )

    def median_error(self, samples: Sequence[Observed]) -> float:
        """Return the median error, which one disturbed step does not decide."""
        return float(np.median(np.abs(self.predict(samples) / times(samples) - 1)))

    def errors(self, samples: Sequence[Observed]) -> Errors:
        """Return the errors of the predictions."""
        return Errors.from_times(self.predict(samples), times(samples))

    def refit(self, samples: Sequence[Observed]) -> Refitted:
        """Refit one mode as ``refit``, several by one factor if held-out samples bear it."""
        if not self.modes:
            return refit(self.latency, self.scheme, samples)
        before, few = self.errors(samples), Errors(0, None, None, None)
        kept = Refitted(self.scheme, before, few, "kept", "", self.latency, self.modes)
        if len(samples) < LEAST_TO_SCALE:
            reason = f"{len(samples)} pipelines measured, {LEAST_TO_SCALE} are needed"
            return replace(kept, reason=reason)
        made_from, held_out = _halve(samples)
        factor = float(np.median(times(made_from) / self.predict(made_from)))
        scaled = self.scale(factor)
        if self.median_error(held_out) <= scaled.median_error(held_out):
            reason = "predicts the held-out half best"
            return replace(kept, after=self.errors(held_out), reason=reason)
        return Refitted(
            self.scheme,
            before,
            scaled.errors(held_out),
            "scaled",
            f"all coefficients of all modes times {factor:.3f}",
            scaled.latency,
            scaled.modes,
        )


def _halve(samples: Sequence[Observed]) -> tuple[list[Observed], list[Observed]]:
    """Split samples into those that coefficients are made from, and those held out."""
    made_from, held_out = split_halves(len(samples))
    return [samples[i] for i in made_from], [samples[i] for i in held_out]


def _with_share(fitted: Latency, of: Latency) -> Latency:
    """Return ``fitted`` with the share of b between ranks that ``of`` has."""
    return replace(fitted, b_shared=min(1.0, of.b_shared / of.b) * fitted.b) if of.b else fitted


def _extrapolate(
    model: SchemeTimes,
    samples: Sequence[Observed],
    common: CommonFactor,
    overhead: DegreeOverhead | None,
) -> Refitted:
    """Correct a scheme as the measured ones, unless it is predicted better without."""
    few = f"{len(samples)} pipelines measured, {LEAST_TO_SCALE} are needed"
    if not samples:
        few = "not measured"
    scheme, factor = model.scheme, common.factor
    scaled = model.scale(factor) if overhead is None else model.correct(overhead)
    before = model.errors(samples)
    if samples and model.median_error(samples) < scaled.median_error(samples):
        by = f"factor of {factor:.3f}" if overhead is None else "overhead"
        reason = f"{few}; the measured schemes' {by} predicts them worse"
        return Refitted(scheme, before, before, "kept", reason, model.latency, model.modes)
    reason = f"scaled by {factor:.3f}, as the measured schemes{common.disagreement}; {few}"
    if overhead is not None:
        reason = f"{overhead}, as the measured schemes; {few}"
    after = scaled.errors(samples)
    return Refitted(scheme, before, after, "extrapolated", reason, scaled.latency, scaled.modes)


def _write_latency(fields: dict[str, Any], latency: Latency) -> None:
    """Replace the coefficients among the fields of an entry or of one of its modes."""
    fields.pop(SHARED, None)
    fields.update(latency.as_dict())


def write_refit(profile: Profile, results: Sequence[Refitted], source: str) -> dict[str, Any]:
    """Return the profile with the new coefficients; ``source`` is added to its source.

    Schemes that were kept stay as they are, digits included. Extrapolated ones keep their origin
    and ``fit`` states the correction; the errors that it stated before were of other coefficients.
    """
    document: dict[str, Any] = copy.deepcopy(dict(profile.document))
    changed = {result.scheme: result for result in results if result.how != "kept"}
    for fields in document["schemes"]:
        result = changed.get(scheme_of(fields))
        if result is None:
            continue
        if result.modes:
            for mode, latency in result.modes.items():
                _write_latency(fields["modes"][mode], latency)
        else:
            _write_latency(fields, result.latency)
        if result.how == "extrapolated":
            fields["fit"] = {"refitted": f"extrapolated: {result.reason}"}
            continue
        fields["origin"] = "measured"
        fields["fit"] = {
            "refitted": f"{result.how}: {result.reason}",
            "held_out": {
                "samples": result.after.samples,
                "median": result.after.median,
                "p90": result.after.p90,
                "largest": result.after.largest,
            },
        }
    document["source"] = f"{profile.source}; {source}"
    if changed:
        document["residuals"] = _describe_residuals(results)
    return document


def _describe_residuals(results: Sequence[Refitted]) -> str:
    """Describe the errors of schemes that were refitted or kept by enough measured times."""
    checked = [
        result for result in results if result.how != "extrapolated" and result.after.samples
    ]
    median = max(result.after.median or 0.0 for result in checked)
    p90 = max(result.after.p90 or 0.0 for result in checked)
    others = len(results) - len(checked)
    unchecked = f"; {count_of(others, 'scheme')} without enough measured times unchecked"
    return (
        f"measured in training, worst scheme: held-out {percent(median)} (median) "
        f"{percent(p90)} (p90){unchecked if others else ''}"
    )


def _predict(latency: Latency, samples: Sequence[Observed]) -> Any:
    return features(samples) @ np.array([latency.a, latency.b, latency.c])


def _errors(latency: Latency, samples: Sequence[Observed]) -> Errors:
    return Errors.from_times(_predict(latency, samples), times(samples))


def _mean_error(latency: Latency, samples: Sequence[Observed]) -> float:
    """Return the median error, which one disturbed step does not decide."""
    return float(np.median(np.abs(_predict(latency, samples) / times(samples) - 1)))
