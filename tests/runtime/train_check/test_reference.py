"""The reference is right and does not hold the scores of a long document."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from seqplan.runtime.check.reference import dense_attention
from seqplan.runtime.sequence_parallel.context import local_context


def test_dense_attention_is_softmax_of_all_scores() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(33, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    keys, values = (tensor.repeat_interleave(2, 1) for tensor in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, keys) / 8**0.5
    scores = scores.masked_fill(torch.ones(33, 33).triu(1).bool(), -torch.inf)
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    assert (dense_attention(q, k, v, local_context([33])) - expected).abs().max().item() < 1e-13


def test_dense_attention_works_in_blocks() -> None:
    """By the kernel with memory linear in the tokens: torch raises if it cannot use it."""
    q = torch.randn(64, 2, 8)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert dense_attention(q, q, q, local_context([64])).shape == q.shape
