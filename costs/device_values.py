"""The device of a profile's document: its name, and values other than the listed one's."""

from __future__ import annotations

from typing import Any

from seqplan.plans.format.fields import FieldReader

_NAMED = frozenset({"gpu", "gpus_per_node"})
DEVICE_VALUES = frozenset(
    {"peak_tflops", "memory_bytes", "hbm_gb_s", "intra_gb_s", "inter_gb_s", "host_gb_s"}
    | {"host_memory_bytes", "inter_rank_us", "inter_rails", "matmul_efficiency"}
)
"""Values of ``Hardware`` that a device file gives."""


def check_device(reader: FieldReader, hardware: dict[str, Any]) -> None:
    """Check the fields of a profile's ``hardware``; the reader's error names a bad one."""
    reader.fields(hardware, ".hardware", _NAMED, frozenset({"values"}))
    values = hardware.get("values", {})
    reader.fields(values, ".hardware.values", frozenset(), DEVICE_VALUES)
    for name in values:
        reader.number(values, name, ".hardware.values")
