"""The page for trainer authors: its code is the example's, or runs as it is."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plan_builder import write_file
from random_plans import one_pipeline_plan
from ranks import run_ranks

from seqplan import runtime
from seqplan.plans.plan import Plan
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.rank_view import rank_view
from seqplan.runtime.models.fused import rotate_heads
from seqplan.runtime.models.llama import ModelConfig, rotations

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "trainers.md"
HIDDEN, HEADS, VOCAB = 16, 2, 32
LENGTHS = [[40, 3, 17], [9, 1, 25]]


def blocks() -> list[str]:
    """The page's Python code: the shortest trainer, the example's, and definitions."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_trainer_of_the_page_is_the_example() -> None:
    example = (ROOT / "examples" / "train.py").read_text(encoding="utf-8")
    assert blocks()[1] in example
    assert f"whole trainer of {len(example.splitlines())} lines" in PAGE.read_text(encoding="utf-8")


def rotary(heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    config = ModelConfig(hidden=HIDDEN, heads=HEADS, kv_heads=HEADS)
    return rotate_heads(heads, HEADS, 0, rotations(positions, config, heads.dtype))[0]


def code_of_the_page() -> dict[str, Any]:
    """Its names: ``train_step``, ``Attention`` and ``evaluate``."""
    names: dict[str, Any] = {"runtime": runtime, "torch": torch, "rotary": rotary}
    for block in blocks()[2:]:
        exec(block, names)
    return names


class Model(torch.nn.Module):
    """One layer of the page's attention between an embedding and a head."""

    def __init__(self, attention: type[torch.nn.Module]) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, HIDDEN)
        self.attention = attention(HIDDEN, HEADS)
        self.head = torch.nn.Linear(HIDDEN, VOCAB)

    def forward(self, tokens: torch.Tensor, context: runtime.AttentionContext) -> torch.Tensor:
        hidden = self.embedding(tokens)
        return self.head(hidden + self.attention(hidden, context))


def plans(world_size: int) -> list[Plan]:
    """The same two batches for any number of ranks."""
    schemes = [Scheme(ulysses=world_size), Scheme(ring=world_size)]
    return [
        one_pipeline_plan(scheme, lengths, step=step)
        for step, (scheme, lengths) in enumerate(zip(schemes, LENGTHS, strict=True))
    ]


def trained(rank: int, world_size: int) -> list[tuple[float, float]]:
    """Losses and gradient norms, then two figures of the trained model's output."""
    page = code_of_the_page()
    groups = runtime.Communicators.create()
    torch.manual_seed(0)
    model = Model(page["Attention"]).double()
    states = runtime.ShardedStates(model, groups.states)
    optimizer = torch.optim.AdamW([master for _, master in states.master_parameters()], lr=0.1)
    prepare = runtime.make_preparer(
        runtime.data.SeededTokens(VOCAB, 0),
        runtime.Peers(groups.attention),
        heads=HEADS,
        kv_heads=HEADS,
    )
    views = [rank_view(plan, rank) for plan in plans(world_size)]
    steps = [page["train_step"](view, prepare(view), model, states, optimizer) for view in views]
    logits = page["evaluate"](model, states, [torch.arange(7), torch.arange(5)])
    return [*steps, (logits.abs().sum().item(), logits[-1, -1].item())]


def test_the_code_of_the_page_trains() -> None:
    alone = run_ranks(trained, 1)[0]
    assert alone[0] != alone[1]
    for outcomes in run_ranks(trained, 2):
        for step, expected in zip(outcomes, alone, strict=True):
            assert step == pytest.approx(expected, rel=1e-12)


def train_shortest(rank: int, world_size: int, folder: Path) -> tuple[int, float]:
    os.chdir(folder)
    code = blocks()[0]
    torch.manual_seed(0)
    sizes = ModelConfig(hidden=HIDDEN, heads=HEADS, kv_heads=HEADS, vocab=VOCAB)
    names: dict[str, Any] = {
        "runtime": runtime,
        "torch": torch,
        "model": runtime.models.Llama(sizes),
        "data": runtime.data.SeededTokens(VOCAB, 0),
        "heads": HEADS,
        "kv_heads": HEADS,
        "rank": rank,
        "world_size": world_size,
    }
    exec(code, names)
    return names["result"].step, names["result"].loss


def test_the_shortest_trainer_trains(tmp_path: Path) -> None:
    write_file(tmp_path / "plans.jsonl", plans(2))
    outcomes = run_ranks(train_shortest, 2, tmp_path)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == len(LENGTHS) - 1


def test_the_page_names_existing_functions() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for names in set(re.findall(r"runtime\.([A-Za-z_]+)(?:\.([A-Za-z_]+))?", text)):
        public: Any = runtime
        for name in filter(None, names):
            assert name in getattr(public, "__all__", dir(public))
            public = getattr(public, name)


def trained_with_experts(rank: int, world_size: int, paths: list[str]) -> list[list[float]]:
    groups = runtime.Communicators.create()
    losses = []
    for path in paths:
        torch.manual_seed(0)
        losses.append(code_of_the_page()["train_with_experts"](path, groups))
    return losses


def test_experts_of_the_page_train_whole_and_split(tmp_path: Path) -> None:
    paths = []
    for degree in (1, 2):
        split = [replace(plan, expert_parallel=degree) for plan in plans(2)]
        paths.append(str(write_file(tmp_path / f"plans-{degree}.jsonl", split)))
    for whole, split in run_ranks(trained_with_experts, 2, paths):
        assert len(whole) == len(LENGTHS)
        assert split == pytest.approx(whole, rel=1e-6)
