"""Extra values and arguments of ``save`` are checked before anything is written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

from seqplan.runtime.checkpoint.save_restore import Cursor, restore, save
from seqplan.runtime.checkpoint.stored_extra import make_storable
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.states.sharded_states import ShardedStates

CONFIG = ModelConfig(hidden=8, layers=1, heads=2, kv_heads=1, ffn=8, vocab=17)
EXTRA = {
    "rates": [np.float64(0.5), (np.int64(3),)],
    "random": np.random.default_rng(0).bit_generator.state,
    "reversed": np.arange(3)[::-1],
    np.int64(7): None,
}


def save_and_restore(rank: int, world_size: int, folder: Path) -> Any:
    groups = Communicators.create()
    states = ShardedStates(Llama(CONFIG), groups.states)
    optimizer = torch.optim.SGD([master for _, master in states.master_parameters()])
    of_one_rank = {"paths": [1, Path("x")]} if rank == 1 else {}
    for cursor, keep, extra, message in (
        (Cursor(1, None), 2, of_one_rank, r"extra\['paths'\]\[1\]: PosixPath, which a checkpoint"),
        (Cursor(1, None), 2, {"x": np.zeros(2, np.longdouble)}, r"extra\['x'\]: ndarray, which"),
        (Cursor(1, None), 0, {}, "keep: 0. Give 1 or more"),
        (Cursor(-1, None), 2, {}, "next_step: -1. Give 0 or more"),
        (Cursor(rank, None), 2, {}, r"cursor: rank 0 has \(0, None\), rank 1 \(1, None\)"),
    ):
        with pytest.raises(ValueError, match=message):
            save(folder, cursor, states, optimizer, groups.control, keep=keep, extra=extra)
    assert not folder.exists()
    path = save(folder, Cursor(1, None), states, optimizer, groups.control, extra=EXTRA)
    cursor = restore(folder, states, optimizer, groups.control)
    torch.distributed.barrier()
    if rank == 0:  # as written before values were checked
        torch.save({"rate": np.float64(0.5)}, path / "extra-00001.pt")
        document = (path / "cursor.json").read_text()
        (path / "cursor.json").write_text(document.replace('"sizes"', '"no_sizes"'))
    torch.distributed.barrier()
    message = "extra holds numpy.*scalar.*. Allow it with torch.serialization.add_safe_globals"
    with pytest.raises(ValueError, match=message):
        restore(folder, states, optimizer, groups.control)
    assert cursor is not None
    return cursor.extra


def test_values_that_cannot_be_restored_are_rejected_on_all_ranks(tmp_path: Path) -> None:
    for extra in run_ranks(save_and_restore, 2, tmp_path / "job"):
        assert extra["rates"] == [0.5, (3,)]
        assert extra["random"] == EXTRA["random"]
        assert torch.equal(extra["reversed"], torch.tensor([2, 1, 0]))
        assert extra[7] is None


def test_types_of_mappings_and_versions_of_modules_remain() -> None:
    states = torch.nn.BatchNorm1d(3).state_dict()
    assert vars(make_storable(states)) == vars(states)
    assert type(make_storable(Counter("ab"))) is Counter


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"names": np.array(["a"])}, r"extra\['names'\]: ndarray"),
        ({"seen": {np.int64(1)}}, r"extra\['seen'\]: set"),
        ({"rows": [range(3)]}, r"extra\['rows'\]\[0\]: range"),
        ({Path("k"): 1}, "key .*: PosixPath"),
    ],
)
def test_the_key_of_a_value_is_named(value: dict[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_storable(value)
