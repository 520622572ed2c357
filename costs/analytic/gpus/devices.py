"""The GPUs that have a name here, from their data sheets."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from seqplan.costs.analytic.gpus.hardware import Hardware
from seqplan.costs.model_files.description_file import read_listed

DEVICES: dict[str, Hardware] = {
    name: Hardware(name=name, **values)
    for name, values in read_listed(Path(__file__).with_name("devices.toml")).items()
}
"""Hardware by name; the file has the origin of its values."""


def find_device(name: str, parameter: str = "device") -> Hardware:
    """Return the hardware of this name; ``ValueError`` suggests the nearest of all.

    In any case of letters; the size of its memory may be left out if there is one, as in ``h100``.
    ``parameter``: its name for the reader.
    """
    lower = name.lower()
    sized = [known for known in DEVICES if re.fullmatch(rf"{re.escape(lower)}-[0-9]+gb", known)]
    if lower not in DEVICES and len(sized) != 1:
        near = get_close_matches(lower, DEVICES, n=1, cutoff=0.4)
        meant = f"Did you mean {' or '.join(sized or near)}? " if sized or near else ""
        raise ValueError(
            f"{parameter} {name!r}: unknown. {meant}There are {', '.join(DEVICES)}, or give a "
            "file of a device's values (.json, .toml)"
        )
    return DEVICES[lower if lower in DEVICES else sized[0]]
