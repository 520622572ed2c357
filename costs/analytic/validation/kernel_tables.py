"""Tables of attention kernels alone: FlashAttention 2 and 3 and cuDNN on A100 and H100."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.kernels import BACKWARD_FLOPS, attention_kernel_ms
from seqplan.costs.analytic.validation.published import read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow

_MISSING = {
    "a100-80gb": """\
The rates are FlashAttention-2's (73 % forward, 63 % backward); that heads of 64 reach 88 %
of them, 91 % with a causal mask (``narrow``, ``narrow_causal``), was set by this table.
Calls without a mask are predicted up to 9 % fast or slow: the share of a causal one (0.9) is lower
than here, as ring's blocks without a mask are (USP, table 3).""",
    "h100-80gb": """\
The rates of the three kernels on Hopper (forward, backward, causal, wave) were set by this table,
to two digits: it shows how well a few numbers describe 84, no more.
Calls of 1,024 tokens alone are up to twice as slow as predicted: their start is timed too.""",
}


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
    return TableCheck(
        name=f"attention kernels, {device}",
        what=f"TFLOP/s of attention alone, {len(rows)} calls ({figures['source']})",
        unit="TFLOP/s",
        larger_is_better=True,
        rows=tuple(rows),
        missing=_MISSING[device],
        compete=False,
    )
