"""Which attention is checked: documents, heads, dtypes, and what else the scores have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from seqplan.profiler.verify.dense_attention import AttentionTensors
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.runtime.sequence_parallel.masks import WHOLE, Mask
from seqplan.runtime.sequence_parallel.ring_layout import GATHER_BELOW

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCase:
    """Documents of ``lengths`` tokens, packed, and the attention over them.

    ``heads``: of queries and of keys; ``scores``: their terms beyond a causal mask, in a word;
    ``rings``: the lengths of ring that are emulated; ``gather_below``: see ``ring_layout``.
    """

    documents: str
    lengths: tuple[int, ...]
    heads: tuple[int, int]
    width: int
    dtype: str
    rings: tuple[int, ...]
    scores: str = "causal"
    mask: Mask = WHOLE
    softcap: float | None = None
    sinks: bool = False
    gather_below: int = GATHER_BELOW

    @property
    def name(self) -> str:
        """Scores, documents and heads in a few words."""
        return (
            f"{self.scores}, {self.documents}, heads {self.heads[0]}/{self.heads[1]} × {self.width}"
        )

    def tensors(self, device: torch.device) -> AttentionTensors:
        """Draw the inputs, the same each time."""
        generator = torch.Generator().manual_seed(sum(self.lengths) + self.width)
        query_heads, key_heads = self.heads

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device, DTYPES[self.dtype])

        tokens = sum(self.lengths)
        q, k, v, dout = (
            drawn(tokens, heads, self.width)
            for heads in (query_heads, key_heads, key_heads, query_heads)
        )
        return AttentionTensors(q, k, v, dout, drawn(query_heads) if self.sinks else None)


def attention_cases(settings: VerifySettings) -> Iterator[AttentionCase]:
    """Give the cases, those that differ most first.

    ``passed`` and ``gathered``: all documents go round the ring, or are fetched; else by length.
    """
    rings = (2, 4) if settings.quick else (2, 4, 8)
    batches = _batches(settings)
    widths = (64,) if settings.quick else (128, 64, 192, 256)

    def case(documents: str, width: int, dtype: str, **options: object) -> AttentionCase:
        return AttentionCase(
            documents=documents,
            lengths=batches[documents],
            heads=(8, 8) if width == 64 and not settings.quick else (8, 2),
            width=width,
            dtype=dtype,
            rings=rings,
            **options,  # type: ignore[arg-type]
        )

    window = max(batches["single"]) // 5
    others: tuple[dict[str, object], ...] = (
        {},
        {"scores": "window", "mask": Mask(window=window)},
        {"scores": "soft cap", "softcap": 5.0},
        {"scores": "sinks", "sinks": True},
        {"scores": "passed", "gather_below": 0},
        {"scores": "gathered", "gather_below": 10**9},
        {"scores": "chunk", "mask": Mask(chunk=window)},
    )
    for options in others:
        for dtype in DTYPES:
            yield case("packed", widths[0], dtype, **options)
    for width in widths:
        for documents in batches:
            for dtype in DTYPES:
                if (documents, width) != ("packed", widths[0]):
                    yield case(documents, width, dtype)


def _batches(settings: VerifySettings) -> dict[str, tuple[int, ...]]:
    if settings.quick:
        return {"packed": (24, 130, 1, 9), "single": (97,), "one token": (1, 1, 1)}
    if settings.cuda:
        return {
            "packed": (64, 1500, 33, 129, 5, 1, 2300, 1, 700),
            "single": (4099,),
            "one token": (1,) * 17,
        }
    return {
        "packed": (64, 700, 33, 129, 5, 1, 256, 1),
        "single": (1027,),
        "one token": (1,) * 17,
    }
