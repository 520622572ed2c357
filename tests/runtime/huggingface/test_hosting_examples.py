"""The examples that train models of transformers, run on two ranks as torchrun starts them."""

from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hosting_ranks import hosted, needs_transformers

pytestmark = needs_transformers

EXAMPLES = Path(__file__).parents[3] / "examples"
RANKS = 2


def programs(rank: int, world_size: int, ports: list[int], folder: Path) -> Any:
    """What the ``main`` of each example returns, and the model that was saved."""
    from transformers import AutoModelForCausalLM

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    sys.argv = ["example"]
    os.environ["MASTER_PORT"] = str(ports[0])
    fine_tune = runpy.run_path(str(EXAMPLES / "fine_tune.py"))
    losses = fine_tune["main"](["--output", str(folder / "model")])
    os.environ["MASTER_PORT"] = str(ports[1])
    rewards = runpy.run_path(str(EXAMPLES / "policy_gradient.py"))["main"]()
    stored = AutoModelForCausalLM.from_pretrained(folder / "model").config.vocab_size
    return losses, rewards, stored


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    folder = tmp_path_factory.mktemp("fine_tune")
    return hosted(programs, int, RANKS, ports, folder, joined=False)[0]


def test_fine_tuning_learns_the_answers(outcomes: Any) -> None:
    losses = [rank[0] for rank in outcomes]
    assert losses[0] == losses[1]
    assert losses[0][-1] < 0.6 * losses[0][0]
    assert [rank[2] for rank in outcomes] == [32] * RANKS


def test_what_is_rewarded_is_sampled_more_often(outcomes: Any) -> None:
    rewards = [rank[1] for rank in outcomes]
    assert rewards[0] == rewards[1]
    assert sum(rewards[0][-2:]) > sum(rewards[0][:2]) + 0.2
