"""Shares of a pipeline's resources as sums of terms of each length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqplan.planner.placement.fleet import Floats


@dataclass(frozen=True)
class ShareTerms:
    """Shares of a class's states in its resources, as sums of terms of each length.

    ``coefficients`` (states, resources, properties) of ``ClassLengths.properties``, and
    ``of_large_work`` (states,) of ``large_work`` (states, n) in the third resource alone.
    ``of_modes``: further shares (n,) of one state and resource each.
    """

    coefficients: Floats
    of_large_work: Floats
    large_work: npt.NDArray[np.bool_]
    of_modes: Sequence[tuple[int, int, Floats]]

    def by_resource(self, properties: Floats) -> Floats:
        """Sum the shares of each resource (states, resources, n)."""
        shares: Floats = self.coefficients @ properties
        shares[:, 2] += self.of_large_work[:, None] * self.large_work
        for state, resource, of_lengths in self.of_modes:
            shares[state, resource] += of_lengths
        return shares

    def weigh(self, properties: Floats, weights: Floats) -> Floats:
        """Sum the shares at weights (states, mixes, resources) to (states, mixes, n)."""
        states, mixes, _ = weights.shape
        of_properties = (weights @ self.coefficients).reshape(states * mixes, -1)
        shares = (of_properties @ properties).reshape(states, mixes, -1)
        of_large_work = weights[..., 2] * self.of_large_work[:, None]
        for mix in np.flatnonzero(of_large_work.any(axis=0)):
            shares[:, mix] += of_large_work[:, mix, None] * self.large_work
        for state, resource, of_lengths in self.of_modes:
            shares[state] += weights[state, :, resource, None] * of_lengths
        return shares
