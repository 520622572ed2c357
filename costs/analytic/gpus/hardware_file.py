"""A device that is not listed: a file with the nearest listed one and its values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqplan.costs.analytic.gpus.devices import DEVICES, find_device
from seqplan.costs.analytic.gpus.hardware import GIB, Hardware
from seqplan.costs.analytic.gpus.profiled_device import replace_values
from seqplan.costs.model_files.description_file import (
    SUFFIXES,
    check_fields,
    check_integer,
    check_number,
    read_fields,
)

DEVICE_VALUES = ("peak_tflops", "hbm_gb_s", "memory_gib", "matmul_efficiency")
"""Fields whose values make a device unchecked."""

LINK_VALUES = ("intra_gb_s", "inter_gb_s", "host_gb_s", "inter_rank_us")
COUNTS = ("inter_rails", "gpus_per_node")
FIELDS = (
    *("base", *DEVICE_VALUES, *LINK_VALUES, *COUNTS, "attention_kernel"),
    *("host_memory_gb", "cost_terms"),
)
"""Fields of a file; each but ``base`` replaces the value of the listed device."""


def find_hardware(name: str, parameter: str = "hardware") -> Hardware:
    """Return the listed hardware of this name, or that of a .json or .toml file.

    ``parameter``: its name for the reader. ``ValueError`` for an unknown name and a bad file.
    """
    if Path(name).suffix in SUFFIXES:
        return read_hardware(Path(name))
    return find_device(name, parameter)


def read_hardware(path: Path) -> Hardware:
    """Read a file of ``FIELDS``; ``ValueError`` names the file, the field and its value."""
    fields = read_fields(path)
    check_fields(path, fields, FIELDS)
    base = fields.pop("base", None)
    if not isinstance(base, str):
        shown = "base is missing" if base is None else f"base must be a device: {base!r}"
        raise ValueError(f"{path}: {shown}. Name the nearest of {', '.join(DEVICES)}")
    listed = find_device(base, f"{path}: base")
    values = _check_values(path, fields)
    try:
        return _convert_values(listed, values)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).removeprefix('hardware: ')}") from None


def _check_values(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "attention_kernel":
            if not isinstance(value, str):
                raise ValueError(f"{path}: {name} must be a kernel's name: {value!r}")
            values[name] = value
        elif name == "cost_terms":
            if not isinstance(value, list) or not all(isinstance(term, str) for term in value):
                raise ValueError(f"{path}: cost_terms must be a list of names: {value!r}")
            values[name] = tuple(value)
        elif name in COUNTS:
            values[name] = check_integer(path, name, value)
        else:
            values[name] = check_number(path, name, value)
    return values


def _convert_values(listed: Hardware, values: dict[str, Any]) -> Hardware:
    if (memory_gib := values.pop("memory_gib", None)) is not None:
        if not 1e-3 <= memory_gib <= 9e5:
            raise ValueError(f"memory_gib must be from 0.001 to 900,000: {memory_gib:g}")
        values["memory_bytes"] = memory_gib * GIB
    if (host_gb := values.pop("host_memory_gb", None)) is not None:
        if not 1e-3 <= host_gb <= 1e6:
            raise ValueError(f"host_memory_gb must be from 0.001 to 1,000,000: {host_gb:g}")
        values["host_memory_bytes"] = host_gb * 1e9
    return replace_values(listed, values)
