"""The device of a profile: a listed one, with the values of the file that it was derived for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import Hardware
from seqplan.costs.device_values import DEVICE_VALUES
from seqplan.costs.profile import Profile

RATES = ("peak_tflops", "hbm_gb_s", "memory_bytes", "matmul_efficiency")
"""Values that make a device unchecked."""


def replace_values(listed: Hardware, values: Mapping[str, object]) -> Hardware:
    """Return a listed device with other values; ``ValueError`` for one out of range."""
    values = dict(values)
    if changed := [name for name in (*RATES, "gpus_per_node") if name in values]:
        given = ", ".join(f"{name.replace('_', ' ')} {values[name]:g}" for name in changed)
        values["source"] = f"{listed.source}; as given: {given}"
    if not values.keys().isdisjoint(RATES):
        values["unchecked"] = True
    return replace(listed, **values)  # type: ignore[arg-type]


def list_values(hardware: Hardware) -> dict[str, float]:
    """List the values in which a device differs from the listed one of its name."""
    listed = DEVICES.get(hardware.name, hardware)
    return {
        name: float(getattr(hardware, name))
        for name in sorted(DEVICE_VALUES)
        if getattr(hardware, name) != getattr(listed, name)
    }


def hardware_of(profile: Profile) -> Hardware | None:
    """Return the data sheet of the profile's GPU by its name; None if it is not listed.

    The most of a listed name counts, of equals the plainest; None if two are as near. With the
    values that the profile states in their place.
    """
    name = profile.hardware.lower().replace(" ", "").replace("_", "-")
    ranks = {}
    for device in DEVICES.values():
        family, *others = device.name.split("-")
        if family in name:
            ranks[device.name] = (sum(part in name for part in others), len(family), -len(others))
    best = [of for of, rank in ranks.items() if rank == max(ranks.values())]
    values = profile.document["hardware"].get("values", {})
    return replace_values(DEVICES[best[0]], values) if len(best) == 1 else None
