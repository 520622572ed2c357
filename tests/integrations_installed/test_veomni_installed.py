"""Dynamic batches by cost in VeOmni's code, of which the whole needs older transformers."""

import ast
import logging
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from seqplan import Cost
from seqplan.integrations.veomni import LOADER, NAME, EffectiveTokens
from seqplan.planner.systems.veomni import assign_longest_first
from seqplan.planner.systems.windows import fill_in_order

FOUND = find_spec("veomni")
pytestmark = pytest.mark.skipif(FOUND is None, reason="veomni is not installed")

COST = Cost.from_profile("llama3-8b-h100-80gb", "tp1")
CODE = Path(__file__).parents[2] / "examples" / "data" / "code.npy"
STEPS, ROOM = 20, 1.5


def source(module: str) -> Path:
    assert FOUND.origin is not None
    return Path(FOUND.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")


def load(name: str) -> ModuleType:
    """One of its modules, without the package."""
    spec = spec_from_file_location(name, source(name))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def batching(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its module of dynamic batches, which needs a logger of the package only."""
    for name in ("veomni", "veomni.data", "veomni.utils"):
        package: Any = ModuleType(name)
        package.__path__ = []
        package.logging = logging
        monkeypatch.setitem(sys.modules, name, package)
    logging.get_logger = logging.getLogger  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "veomni.utils.logging", logging)
    yield load("veomni.data.dynamic_batching")
    del logging.get_logger  # type: ignore[attr-defined]


def test_the_loader_takes_its_length_function_by_name() -> None:
    called = {
        node.func.id: [ast.unparse(argument) for argument in node.args]
        for node in ast.walk(ast.parse(source(LOADER).read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called[NAME] == ["dyn_bsz_count_mode"]


@pytest.mark.parametrize("longest", [8_192, 32_768, 65_536])
@pytest.mark.parametrize("ranks", [8, 64])
def test_steps_of_equal_costs_take_less_time(batching: Any, longest: int, ranks: int) -> None:
    lengths = np.random.default_rng(0).permutation(np.minimum(np.load(CODE), longest))

    def measure_rate(count: Any, cap: int | None) -> float:
        """Tokens a millisecond, if each step takes as long as its slowest rank."""
        per_rank = []
        for rank in range(ranks):
            samples = [[{"attention_mask": np.ones(n), "input_ids": np.ones(n)}]
                       for n in lengths[rank : 400 * ranks : ranks] if n > 1]  # fmt: skip
            strategy = batching.TextBatchingStrategy(
                longest, 200, get_length_fn=count, physical_token_cap=cap,
                get_physical_length_fn=lambda sample: len(sample["input_ids"]),
            )  # fmt: skip
            loader = batching.DynamicBatchSizeDataLoader(samples, strategy, length=STEPS)
            per_rank.append([[len(s["input_ids"]) for s in micro] for (micro,) in loader])
        took_ms = sum(max(map(COST.micro_batch_ms, step)) for step in zip(*per_rank, strict=True))
        return sum(sum(micro) for of_rank in per_rank for micro in of_rank) / took_ms

    theirs = measure_rate(None, None)
    ours = measure_rate(EffectiveTokens(COST, longest), int(ROOM * longest))
    print(
        f"max_seq_len {longest}, {ranks} ranks: {ours / theirs:.3f} times as many tokens a second"
    )
    assert ours > theirs


def test_the_compared_rules_are_its_own(batching: Any) -> None:
    lengths = np.minimum(np.load(CODE)[:600], 8_192)
    lengths = lengths[lengths > 1].tolist()
    strategy = batching.TextBatchingStrategy(8_192, buffer_size=0)
    for number, length in enumerate(lengths):
        strategy.put_item(
            {"attention_mask": np.ones(length), "input_ids": np.ones(length), "id": number}
        )
    filled = []
    while not strategy.empty():
        filled.append([sample["id"] for sample in strategy.get_micro_batch(0)])
    assert filled == fill_in_order(lengths, 8_192)
    module = load("veomni.utils.data_balance.balance_sorting_algo")
    images = torch.tensor(sorted(set(lengths)))  # its ties may go to any rank
    rows = torch.stack([torch.arange(len(images)), images], dim=1)
    buckets = module.post_mbs_balancing_greedy_without_pad(rows, 16, 1)
    squares = (images**2).tolist()
    assert [[int(row[0]) for row in of_rank] for of_rank in buckets] == assign_longest_first(
        squares, 16
    )
