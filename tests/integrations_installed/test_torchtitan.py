"""torchtitan's trainer on planned rows: its loop, model, loss and FSDP, on CPU ranks."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from free_port import free_port

from seqplan import Cost

pytestmark = pytest.mark.skipif(find_spec("torchtitan") is None, reason="no torchtitan")

RANK = Path(__file__).with_name("torchtitan_rank.py")
COST = Cost(1e-4, 1e-3, 0.1)


def train(file: Path, ranks: int) -> dict[str, Any]:
    of_all = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    logs = [file.with_suffix(f".{rank}.log") for rank in range(ranks)]
    processes = []
    for rank, path in enumerate(logs):
        with path.open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(RANK), str(file)],
                    env={**os.environ, **of_all, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    cwd=file.parent,
                    stdout=log,
                    stderr=log,
                )
            )
    for process, path in zip(processes, logs, strict=True):
        assert process.wait(timeout=240) == 0, path.read_text()[-2000:]
    trained: dict[str, Any] = json.loads(file.read_text())
    return trained


def test_losses_are_those_of_plain_code_on_any_ranks(tmp_path: Path) -> None:
    alone, together = (train(tmp_path / f"{ranks}.json", ranks) for ranks in (1, 2))
    assert alone["steps"][0][0] == pytest.approx(alone["plain"], rel=1e-5)
    np.testing.assert_allclose(alone["steps"], together["steps"], rtol=1e-4)
    assert alone["state"] == together["state"] == {"step": 2}


def loader(rank: int = 0, **settings: Any) -> Any:
    from seqplan.integrations.torchtitan import PlannedDataLoader

    samples = [([n] * n, [n] * n) for n in range(2, 34)]
    config = PlannedDataLoader.Config(load_samples=lambda _: samples, sequences=8, cost=COST)
    usual = {"dp_world_size": 2, "tokenizer": None, "seq_len": 64, "local_batch_size": 1}
    return config.build(dp_rank=rank, **{**usual, **settings})


def read_steps(planned: Any, steps: int) -> list[list[list[int]]]:
    rows = iter(planned)
    return [[next(rows)[1][0].tolist() for _ in range(planned.plan_step())] for _ in range(steps)]


def test_an_epoch_has_each_sample_once_and_a_state_goes_on() -> None:
    of_ranks = [read_steps(loader(rank), 6) for rank in range(2)]
    assert [len(step) for step in of_ranks[0]] == [len(step) for step in of_ranks[1]]
    labels = [n for steps in of_ranks for step in steps[:4] for row in step for n in row]
    counts = np.bincount([n for n in labels if n >= 0], minlength=34)
    assert counts.tolist() == [0, 0, *range(2, 34)]
    resumed = loader()
    resumed.load_state_dict({"step": 5})
    assert read_steps(resumed, 1) == of_ranks[0][5:]


def test_settings_that_cannot_run_are_named() -> None:
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    from seqplan.integrations.torchtitan import PlannedTrainer, check_settings

    with pytest.raises(ValueError, match=r"local_batch_size: 8. Set it to 1"):
        loader(local_batch_size=8)
    with pytest.raises(ValueError, match=r"pad_to: 8. Give a divisor"):
        loader(seq_len=60)
    config = llama3_debugmodel()
    with pytest.raises(ValueError, match=r"disable_cuda_graphs: False. Set it to True"):
        check_settings(config)
    config.training.disable_cuda_graphs = True
    with pytest.raises(ValueError, match=r"Give a PlannedDataLoader.Config"):
        check_settings(config)
    config.parallelism.context_parallel_degree = 2
    with pytest.raises(ValueError, match=r"context_parallel_degree: 2. Set it to 1"):
        check_settings(config)
    assert issubclass(PlannedTrainer.Config, type(config))
