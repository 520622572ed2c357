"""Tables of attention kernels alone: FlashAttention 2 and 3 and cuDNN on A100 and H100."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.kernels import BACKWARD_FLOPS, attention_kernel_ms
from seqplan.costs.analytic.validation.published import read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow, make_check


def kernel_checks() -> list[TableCheck]:
    """Predict TFLOP/s of attention kernels, forward, backward or both."""
    figures = read_published("kernels.json")
    return [_kernels(figures, device) for device in ("a100-80gb", "h100-80gb")]


def _kernels(figures: Any, device: str) -> TableCheck:
    rows = []
    for kernel, mask, passes, tokens, sequences, heads, width, rate in figures[device]:
        hardware = replace(DEVICES[device], attention_kernel=kernel)
        once = 4 * heads * width * tokens**2 * sequences * (0.5 if mask == "causal" else 1.0)
        flops, ms = 0.0, 0.0
        for backward in (part == "bwd" for part in passes.split("+")):
            flops += once * (BACKWARD_FLOPS if backward else 1.0)
            lengths = [tokens] * sequences
            ms += float(
                attention_kernel_ms(
                    hardware,
                    lengths,
                    lengths,
                    heads,
                    width,
                    causal=mask == "causal",
                    backward=backward,
                )
            )
        rows.append(
            ValidatedRow(f"{kernel} {mask} {passes} {width}", f"{tokens:,}", flops / ms / 1e9, rate)
        )
    return make_check(
        f"attention kernels, {device}", rows, calls=len(rows), source=figures["source"]
    )
