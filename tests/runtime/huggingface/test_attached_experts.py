"""Models of transformers with split experts on four ranks, compared with one process."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attached_experts import (
    ADAPTED,
    EXPERTS,
    LONG,
    MODELS,
    RANKS,
    RESUMED,
    STEPS,
    largest_difference,
    load,
    reject_on_ranks,
    relative,
    train_all,
    train_all_plainly,
)
from loaded_experts import LAYERS, load_and_save, reject_loading, train_as_the_page
from staged_runs import GATES
from transformers_ranks import Program, needs_transformers, run_with_transformers

pytestmark = needs_transformers

DEGREES = dict(zip((*MODELS, ADAPTED), (2, 4, 2, 4, 2), strict=True))
LOADED = ("mixtral", "gpt_oss", *LONG)
LOSS, NORM, PARAMETER = GATES[torch.float32]
"""Routers of transformers compute in fp32 whatever the model's dtype."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> Any:
    place = str(folder)
    trained = Program(
        train_all, RANKS, (place, DEGREES), meanwhile=partial(train_all_plainly, DEGREES)
    )
    programs = {
        "trained": trained,
        **{name: Program(load_and_save, RANKS, (name, RANKS, place)) for name in LOADED},
        "page": Program(train_as_the_page, RANKS, (place,)),
        "not loaded": Program(reject_loading, RANKS, (place,)),
        "rejected": Program(reject_on_ranks, RANKS, ()),
    }
    return dict(zip(programs, run_with_transformers([*programs.values()], first=load), strict=True))


def of(outcomes: Any, *key: Any) -> list[Any]:
    """The ranks' results of one training."""
    return [rank[key] for rank in outcomes["trained"][0]]


@pytest.mark.parametrize("name", DEGREES)
def test_training_is_that_of_plain_code(outcomes: Any, name: str) -> None:
    ranks, plain = of(outcomes, "train", name), outcomes["trained"][1][name]
    assert len(plain["losses"]) == STEPS
    for mine in ranks:
        assert relative(mine["losses"], plain["losses"]) <= LOSS
        assert relative(mine["norms"], plain["norms"]) <= NORM
        assert set(mine["held"]) == {EXPERTS // DEGREES[name]}
    assert largest_difference(ranks[0]["parameters"], plain["parameters"]) <= PARAMETER


@pytest.mark.parametrize("name", DEGREES)
def test_values_and_logits_are_those_of_all_experts(outcomes: Any, name: str) -> None:
    ranks, plain = of(outcomes, "train", name), outcomes["trained"][1][name]
    for mine in ranks:
        assert [id for id, _ in mine["values"]] == [id for id, _ in plain["values"]]
        for (_, values), (_, known) in zip(mine["values"], plain["values"], strict=True):
            np.testing.assert_allclose(values, known, atol=1e-5)
        np.testing.assert_allclose(mine["logits"], plain["logits"], atol=1e-5)


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_is_read_with_another_degree(outcomes: Any, name: str) -> None:
    plain, resumed = outcomes["trained"][1][name], of(outcomes, "resume", name)
    assert relative(resumed[0]["losses"], plain["losses"][1:]) <= LOSS
    assert largest_difference(resumed[0]["parameters"], plain["parameters"]) <= PARAMETER
    assert largest_difference(resumed[0]["saved"], resumed[0]["parameters"]) == 0.0


@pytest.mark.parametrize("name", LOADED)
def test_no_rank_holds_all_experts(outcomes: Any, name: str) -> None:
    for rank, mine in enumerate(outcomes[name][0]):
        experts, rest = mine["experts"], mine["rest"]
        layer = experts // LAYERS
        assert mine["loaded"] == experts // RANKS
        # A part of the files, and the parameters that are made of it.
        assert mine["loading"] <= 3 * experts // RANKS
        assert mine["evaluating"] < layer // 2
        # A layer's at a time on the first rank.
        assert mine["saving"] <= (rest + layer if rank == 0 else layer // RANKS)
        assert mine["worst"] < 1e-5
        assert mine["equal"]
        assert "model.safetensors.index.json" in mine["files"]
        assert sum(name.endswith(".safetensors") for name in mine["files"]) > LAYERS


def test_the_page_trains_in_parts(outcomes: Any) -> None:
    assert outcomes["page"][0] == ["torch.bfloat16"] * RANKS


def test_models_that_cannot_be_loaded_in_parts_are_rejected(outcomes: Any) -> None:
    for messages in outcomes["not loaded"][0]:
        assert "3 does not divide the job's 4 ranks" in messages["ranks"]
        assert "has no experts that transformers' registry runs" in messages["dense"]
        assert "has no part of model.layers.1.mlp.experts.down_proj" in messages["lacking"]
        assert "was loaded in 2 parts. Attach it with expert_parallel" in messages["whole"]
        assert "of 2 of its experts, not part" in messages["degree"]
        assert "rank 0 has a part of the experts, rank 1 all" in messages["some"]
        assert all(len(message.splitlines()) == 1 for message in messages.values())


def test_models_whose_experts_cannot_be_split_are_rejected(outcomes: Any) -> None:
    for messages in outcomes["rejected"][0]:
        assert "3 does not divide the job's 4 ranks" in messages["ranks"]
        for kind in ("dense", "unregistered"):
            assert "has no experts that transformers' registry runs" in messages[kind]
        assert "JetMoeForCausalLM: expert_parallel 2" in messages["unregistered"]
        assert "has adapters on its experts" in messages["adapted"]
        assert all(len(message.splitlines()) == 1 for message in messages.values())
