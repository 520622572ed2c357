"""Recomputation modes in Megatron's blocks and verl's engines, by stand-ins of their classes."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from seqplan.integrations import megatron_recomputation, slime, verl
from seqplan.integrations.recomputation_limits import VARIABLE
from seqplan.integrations.versions import UnsupportedVersion

LIMITS = {"none": 8, "full": 20}


def config(**changes: Any) -> SimpleNamespace:
    usual: dict[str, Any] = {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 3,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
    }
    return SimpleNamespace(**{**usual, **changes})


class Block:
    """The part of Megatron's ``TransformerBlock`` that is replaced."""

    def __init__(self, config: SimpleNamespace, pre_process: bool = True) -> None:
        self.config, self.pre_process = config, pre_process
        self.training = True
        self.input_tensor: torch.Tensor | None = None

    def forward(self, hidden_states: Any, attention_mask: Any) -> tuple[Any, ...]:
        c = self.config
        return c.recompute_granularity, c.recompute_method, c.recompute_num_layers


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> type[Block]:
    module: Any = ModuleType(megatron_recomputation.BLOCK)
    module.TransformerBlock = type("TransformerBlock", (Block,), dict(vars(Block)))
    for at, _ in enumerate(parts := megatron_recomputation.BLOCK.split("."), start=1):
        name = ".".join(parts[:at])
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, megatron_recomputation.BLOCK, module)
    return module.TransformerBlock


def test_a_block_runs_under_the_lightest_mode_that_holds_its_tokens(block: type[Block]) -> None:
    for _ in range(2):  # the second replaces the first
        megatron_recomputation.install_recomputation(LIMITS)
    first, later = block(config()), block(config(), pre_process=False)
    later.input_tensor = torch.zeros(9, 1, 4)
    settings = vars(config())
    none, full = (None, "block", 3), ("full", "uniform", 1)
    assert first.forward(torch.zeros(4, 1, 4), None) == none  # 8 tokens on two tensor ranks
    assert first.forward(torch.zeros(5, 1, 4), attention_mask=None) == full
    assert later.forward(None, None) == full
    assert vars(first.config) == settings
    with pytest.raises(ValueError, match="tokens of a micro-batch: 22"):
        first.forward(torch.zeros(11, 1, 4), None)
    first.training = False
    assert first.forward(torch.zeros(11, 1, 4), None) == ("full", "block", 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recompute_granularity": "selective"}, "modes: selective. Set it to full or to none"),
        ({"expert_model_parallel_size": 2}, "expert_model_parallel_size with recomputation modes"),
        ({"cuda_graph_impl": "local"}, "cuda_graph_impl with recomputation modes: local. Set it"),
    ],
)
def test_settings_that_do_not_switch_are_rejected_when_a_model_is_made(
    block: type[Block], changes: dict[str, Any], message: str
) -> None:
    megatron_recomputation.install_recomputation(LIMITS)
    with pytest.raises(ValueError, match=message):
        block(config(**changes))


def test_modes_that_megatron_lacks_are_rejected(block: type[Block]) -> None:
    message = "Megatron cannot switch to recomputation mode: mlp. Use none, full"
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        megatron_recomputation.install_recomputation({"mlp": 5, "full": 9})
    del sys.modules[megatron_recomputation.BLOCK].TransformerBlock
    with pytest.raises(UnsupportedVersion, match="has no TransformerBlock in megatron"):
        megatron_recomputation.install_recomputation(LIMITS)


def test_slime_rejects_modes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none:4,full:8")
    with pytest.raises(ValueError, match="SEQPLAN_RECOMPUTE with slime: none:4,full:8"):
        slime.install({1: SimpleNamespace()})  # type: ignore[dict-item]


class Layer(torch.nn.Module):
    """A layer that transformers could checkpoint."""

    gradient_checkpointing = False


class Model(torch.nn.Module):
    """A model of transformers, as far as its layers are switched."""

    supports_gradient_checkpointing = True
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=1))

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer()])


def test_verls_engine_switches_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    class FSDPEngine:
        ulysses_sequence_parallel_size = 2

        def __init__(self) -> None:
            self.module = Model()

    class Trained(FSDPEngine):
        def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> bool:
            layer: Any = self.module.layers[0]
            return bool(layer.gradient_checkpointing)

    module: Any = ModuleType(verl.FSDP)
    module.FSDPEngine, module.Trained = FSDPEngine, Trained
    monkeypatch.setitem(sys.modules, verl.FSDP, module)
    monkeypatch.delenv(VARIABLE, raising=False)
    original = Trained.forward_step
    verl._install_recomputation()
    assert Trained.forward_step is original  # without limits
    monkeypatch.setenv(VARIABLE, "none:8,full:20")
    for _ in range(2):
        verl._install_recomputation()

    def batch(*lengths: int) -> dict[str, torch.Tensor]:
        rows = [torch.zeros(length) for length in lengths]
        return {"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}

    engine = Trained()
    assert not engine.forward_step(batch(10, 6), None, False)  # 8 on each of two ranks
    assert engine.forward_step(batch(10, 7), None, False)
    assert engine.forward_step(batch(90), None, True)  # changes nothing
    with pytest.raises(ValueError, match="tokens of a micro-batch: 45"):
        engine.forward_step(batch(90), None, False)
    monkeypatch.setattr(Model, "supports_gradient_checkpointing", False)
    with pytest.raises(ValueError, match="verl cannot switch to recomputation mode: full"):
        Trained().forward_step(batch(3), None, False)
