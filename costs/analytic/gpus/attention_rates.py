"""How fast attention kernels run: by the generation of the device and of the kernel.

FlashAttention-2 is written for Ampere; on Hopper it lacks the asynchronous products and copies that
FlashAttention-3 and cuDNN use, and reaches hardly more than half of what they do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRate:
    """Shares of the peak that long calls reach, heads of 128 elements and no mask.

    ``forward``, ``backward``: each counted by its FLOPs; ``causal``: the rate with a causal
    mask over the rate without; ``narrow``: that of heads of 64 elements over that of 128,
    ``narrow_causal`` with a causal mask if that differs; ``wave``: tiles that a call loses at
    its end, over those that all multiprocessors take at once; ``checked``: whether published
    measurements have been compared with them.
    """

    forward: float
    backward: float
    causal: float = 0.9
    narrow: float = 1.0
    narrow_causal: float | None = None
    wave: float = 0.5
    checked: bool = False

    def of_width(self, head_width: float, *, masked: bool) -> float:
        """Return the rate for heads of so many elements over that of 128: of 64 at most, less.

        Nothing is published of widths between; those above 128 are taken as that.
        """
        if head_width > 64:
            return 1.0
        return self.narrow if self.narrow_causal is None or not masked else self.narrow_causal


RATES: dict[tuple[str, str], AttentionRate] = {
    ("ampere", "fa1"): AttentionRate(forward=0.45, backward=0.32),
    ("ampere", "fa2"): AttentionRate(
        forward=0.73, backward=0.63, narrow=0.88, narrow_causal=0.91, checked=True
    ),
    ("ampere", "flex"): AttentionRate(forward=0.66, backward=0.4),
    ("ada", "fa2"): AttentionRate(forward=0.95, backward=0.82, checked=True),
    ("hopper", "fa1"): AttentionRate(forward=0.25, backward=0.18),
    ("hopper", "fa2"): AttentionRate(
        forward=0.42, backward=0.36, causal=0.92, narrow=0.9, wave=1.0, checked=True
    ),
    ("hopper", "fa3"): AttentionRate(
        forward=0.75, backward=0.61, causal=0.95, narrow=0.9, wave=1.5, checked=True
    ),
    ("hopper", "cudnn"): AttentionRate(
        forward=0.7, backward=0.54, causal=0.92, narrow=0.9, wave=1.5, checked=True
    ),
    ("hopper", "flex"): AttentionRate(forward=0.38, backward=0.23),
    ("hopper", "magi"): AttentionRate(
        forward=0.75, backward=0.61, causal=0.95, narrow=0.9, wave=1.5
    ),
    ("h20", "fa2"): AttentionRate(forward=0.57, backward=0.49, wave=1.0),
    ("h20", "fa3"): AttentionRate(forward=0.85, backward=0.69, wave=1.5),
    ("h20", "cudnn"): AttentionRate(forward=0.87, backward=0.67, wave=1.5),
    ("blackwell", "fa2"): AttentionRate(forward=0.2, backward=0.17),
    ("blackwell", "fa4"): AttentionRate(forward=0.71, backward=0.5),
    ("blackwell", "cudnn"): AttentionRate(forward=0.7, backward=0.5),
    ("cdna3", "fa2"): AttentionRate(forward=0.35, backward=0.25),
}
RATES |= {
    (generation, "sdpa"): replace(rate, checked=False)
    for (generation, kernel), rate in RATES.items()
    if kernel == "fa2"
}
"""By generation and kernel, by the names that the runtime has for its kernels.

Without a request it calls torch's varlen attention, FlashAttention-2. ``sdpa`` is the same as
Hugging Face calls it, with keys and values copied to each query head.

- Ampere: FlashAttention-2 (arXiv 2307.08691) states 73 % of an A100's peak forward and 63 %
  backward, a causal mask at nine tenths of that, and of its predecessor 30 to 50 % and 25 to 35 %.
- Ada: 95 % forward is assumed, of an L20, whose tensor cores run at half the rate of their kind and
  leave the rest of a kernel time to keep up: with 85 % the kernels alone would take longer than all
  of USP's basic ring at 128K.
- Hopper: set, to two digits, by 84 published calls (``seqplan profile validate``: attention
  kernels, h100-80gb). FlashAttention 1 is assumed as much slower than 2 as on Ampere.
- H20, whose tensor cores run at a quarter of a Hopper's rate: forward without a mask, 2,048 tokens
  and heads of 128, of 148 TFLOP/s (github.com/Dao-AILab/flash-attention, issue 1310); backward is
  assumed to be slower by as much as on Hopper.
- Blackwell: FlashAttention-2 is assumed to do as much in a multiprocessor as on Hopper. It, cuDNN
  there and all on CDNA 3 are assumptions, compared with no measurement. FlashAttention-4 states
  71 % of a B200's peak at best, forward ("FlashAttention-4: Algorithm and Kernel Pipelining
  Co-Design for Asymmetric Hardware Scaling", 2026, abstract); backward is assumed to be cuDNN's.
- FlexAttention, MagiAttention: assumptions, compared with no measurement. FlexAttention's kernels
  are assumed to reach 90 % of FlashAttention-2's rate forward and 85 % backward, and backward of
  this runtime computes forward once more. MagiAttention's is built on FlashAttention-3 (its
  documentation, v1.1) and assumed to be as fast.
"""


def rate_of(generation: str, kernel: str) -> AttentionRate:
    """Look up a kernel's rate on a generation of devices; ``ValueError`` if it does not run."""
    rate = RATES.get((generation, kernel))
    if rate is None:
        there = [name for of, name in RATES if of == generation]
        raise ValueError(
            f"attention kernel {kernel!r} is not known on {generation} devices; there: "
            f"{', '.join(there) or 'none'}"
        )
    return rate
