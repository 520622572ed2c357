"""How much faster or slower each analytic term is on the devices that a profile was measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.profiled_scheme import ProfiledScheme
from seqplan.plans.percent import percent
from seqplan.plans.scheme import Scheme

Floats = npt.NDArray[np.float64]

LENGTHS = np.geomspace(1024, 32768, 9).round()
"""Tokens at which measurements are compared with the terms."""

PRIOR = 0.1
"""A term that is all of the time moves by as much as its misfit weighs against this share (ridge):
a factor of 2 is believed if it explains 10 % of the times."""

LEAST, MOST = 0.2, 5.0
"""Factors beyond which a term explains something else."""


@dataclass(frozen=True)
class Calibration:
    """Factors by term (1: as derived), and how far calibrated times are from the measured ones.

    ``median``, ``p90``: of the relative errors over measured schemes and ``LENGTHS``; ``schemes``:
    number of measured schemes.
    """

    factors: Mapping[str, float]
    median: float
    p90: float
    schemes: int

    def total(self, terms: Mapping[str, Floats]) -> Floats:
        """Add up terms (ms), each times its factor."""
        total: Floats = np.sum([self.factor(name) * ms for name, ms in terms.items()], axis=0)
        return total

    def factor(self, name: str) -> float:
        """Return a term's factor; 1 for one that nothing measured has."""
        return self.factors.get(name, 1.0)

    def __str__(self) -> str:
        """Describe by how much each term moved."""
        moved = ", ".join(f"{name} ×{factor:.2f}" for name, factor in self.factors.items())
        return (
            f"terms calibrated on {self.schemes} measured schemes: {moved}; calibrated times are "
            f"within {percent(self.median)} (median) and {percent(self.p90)} (p90) of them"
        )


def calibrate(deployment: Deployment, measured: Sequence[ProfiledScheme]) -> Calibration:
    """Fit a factor to every term that measured schemes have, by ridge regression towards 1.

    Relative errors over schemes and ``LENGTHS`` have equal weight. ``ValueError`` without schemes.
    """
    from scipy.optimize import lsq_linear

    if not measured:
        raise ValueError("no measured scheme to calibrate on. Give a profile with measured schemes")
    shares: list[dict[str, Floats]] = []
    for entry in measured:
        times = entry.latency.work_ms(LENGTHS) + entry.latency.c
        shares.append({name: ms / times for name, ms in _terms(deployment, entry.scheme).items()})
    names = [name for name in shares[0] if any(share[name].any() for share in shares)]
    matrix = np.concatenate(
        [np.stack([share[name] for name in names], axis=1) for share in shares]
    ) / np.sqrt(len(measured) * len(LENGTHS))
    rows = np.concatenate([matrix, PRIOR * np.eye(len(names))])
    target = np.concatenate(
        [np.full(len(matrix), 1 / np.sqrt(len(matrix))), PRIOR * np.ones(len(names))]
    )
    factors = lsq_linear(rows, target, bounds=(LEAST, MOST)).x
    errors = np.abs(matrix @ factors * np.sqrt(len(matrix)) - 1)
    return Calibration(
        {name: round(float(factor), 4) for name, factor in zip(names, factors, strict=True)},
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        len(measured),
    )


def _terms(deployment: Deployment, scheme: Scheme) -> dict[str, Floats]:
    dp = max(1, deployment.cluster.gpus // scheme.gpus)
    terms = stage_terms(deployment, scheme, LENGTHS[:, None], dp)
    return {name: np.broadcast_to(ms, LENGTHS.shape) for name, ms in terms.items()}
