"""Weights in files of ``torch.distributed.checkpoint``: plain torch reads and writes them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from seqplan.runtime import Communicators, StagedLlama
from seqplan.runtime.checkpoint import load_weights, save_weights
from seqplan.runtime.errors import CheckpointError
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.states.unit_states import UnitStates

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

CONFIG = ModelConfig(hidden=24, layers=2, heads=3, kv_heads=1, ffn=20, vocab=17)


def make_model(seed: int) -> Llama:
    torch.manual_seed(seed)
    return Llama(CONFIG)


def make_states(groups: Communicators, kind: str, seed: int) -> UnitStates:
    if kind == "staged":
        return StagedLlama(make_model(seed), groups, by_messages=True).states
    return ShardedStates(make_model(seed), groups.states, sharding=kind)  # type: ignore[arg-type]


def write(rank: int, world_size: int, folder: Path) -> list[str]:
    """Write the weights of all kinds of states; the message if the folder exists."""
    groups = Communicators.create()
    for kind in ("flat", "by_parameter", "staged"):
        states = make_states(groups, kind, seed=1)
        save_weights(folder / kind, states, groups.control)
    save_weights(folder / "bf16", states, groups.control, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError) as rejected:
        save_weights(folder / "flat", states, groups.control)
    return [str(rejected.value)]


def read(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """Take the weights into all kinds of states; messages of those that do not fit."""
    groups = Communicators.create()
    exports: dict[str, Any] = {}
    for kind in ("flat", "by_parameter", "staged"):
        states = make_states(groups, kind, seed=2)
        load_weights(folder / "plain", states, groups.control)
        exports[kind] = dict(states.export())
        if isinstance(states, ShardedStates):
            states.materialize()
    exports["meta"] = start_on_meta(rank, folder, groups)
    for name, kind in (("short", ValueError), ("wide", ValueError), ("none", CheckpointError)):
        with pytest.raises(kind) as rejected:
            load_weights(folder / name, states, groups.control)
        exports[name] = str(rejected.value)
    return exports


def start_on_meta(rank: int, folder: Path, groups: Communicators) -> list[dict[str, Tensor]]:
    """Export a job whose weights are read, and one whose first rank alone has values."""
    with torch.device("meta"):
        model = make_model(0)
    read_job = StagedLlama(
        model, groups, device=torch.device("cpu"), by_messages=True, weights=folder / "plain"
    )
    tied = replace(CONFIG, tied=True)
    with torch.device("meta" if rank else "cpu"):
        torch.manual_seed(4)
        module = Llama(tied)
    module.norm.weight.requires_grad_(False)
    states = ShardedStates(module, groups.states, device=torch.device("cpu"))
    assert module.head.weight is module.embedding.weight
    taken = {name: value.detach().clone() for name, value in module.named_parameters()}
    assert dict(states.export()).keys() <= taken.keys()
    return [dict(read_job.states.export()), taken]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def messages(folder: Path) -> list[list[str]]:
    return run_ranks(write, 3, folder)


@pytest.mark.parametrize("kind", ["flat", "by_parameter", "staged", "bf16"])
def test_torch_reads_whole_tensors_by_name(
    folder: Path, messages: list[list[str]], kind: str
) -> None:
    import torch.distributed.checkpoint as dcp  # here: the import takes half a second

    expected = dict(make_model(1).named_parameters())
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    found = {name: torch.zeros(value.shape, dtype=dtype) for name, value in expected.items()}
    dcp.load(found, checkpoint_id=folder / kind, no_dist=True)
    for name, value in expected.items():
        assert torch.equal(found[name], value.detach().to(dtype)), name
    stored = dcp.FileSystemReader(folder / kind).read_metadata().state_dict_metadata
    assert set(stored) == set(expected)


def test_a_folder_is_not_written_twice(messages: list[list[str]]) -> None:
    for (text,) in messages:
        assert text.endswith("flat: cannot be written: exists already: use another folder")


def test_weights_that_torch_wrote_are_taken(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    values: dict[str, Tensor] = {
        name: value.detach().to(torch.bfloat16) for name, value in make_model(3).named_parameters()
    }
    dcp.save({**values, "other": torch.ones(2)}, checkpoint_id=folder / "plain", no_dist=True)
    norm = values.pop("norm.weight")
    dcp.save(values, checkpoint_id=folder / "short", no_dist=True)
    wide = {**values, "norm.weight": torch.cat((norm, norm))}
    dcp.save(wide, checkpoint_id=folder / "wide", no_dist=True)
    ranks = run_ranks(read, 2, folder)
    for kind in ("flat", "by_parameter", "staged"):
        for name, value in {**values, "norm.weight": norm}.items():
            assert torch.equal(ranks[0][kind][name], value.float()), (kind, name)
    started, _ = ranks[0]["meta"]
    for name, value in {**values, "norm.weight": norm}.items():
        assert torch.equal(started[name], value.float())
    torch.manual_seed(4)
    expected = dict(Llama(replace(CONFIG, tied=True)).named_parameters())
    for of_rank in ranks:
        _, taken = of_rank["meta"]
        assert taken.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in taken.items())
        assert of_rank["short"].endswith("short: has no parameter norm.weight")
        assert of_rank["wide"].endswith("wide: norm.weight is (48,), the model's (24,)")
        assert "none: cannot be read: " in of_rank["none"]
