"""Whole proposals on a shipped profile."""

from __future__ import annotations

import pytest
from instances import LLAMA_32B, batch_of

from seqplan.planner.proposal.candidates import Effort, propose


def test_a_proposal_holds_the_longest_sequence_and_stands_near_its_bound() -> None:
    batches = [batch_of(seed) for seed in range(6)]
    proposal = propose(batches, LLAMA_32B, 64, 32768, Effort(judged=6))
    assert proposal.lower_bound_ms <= proposal.pool_ms <= proposal.expected_ms
    assert proposal.expected_ms <= proposal.lower_bound_ms * 1.15
    assert any(proposed.max_sequence >= 32768 for proposed in proposal.candidates)
    assert all(proposed.strategy.gpus <= 64 for proposed in proposal.candidates)
    assert sum(proposed.wins for proposed in proposal.candidates) == pytest.approx(1.0)
