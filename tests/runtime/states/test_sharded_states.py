"""Units of parameters: the collectives follow the general transfer list; odd models."""

import copy
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks, run_ranks_expecting_failure
from torch import Tensor, nn

from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.states.replicas import checksum
from seqplan.runtime.states.sharded_states import ShardedStates


class Odd(nn.Module):
    """Tied weights, a frozen module, a root parameter, and one without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.frozen = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6, bias=False)
        self.last.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(6))
        self.unused = nn.Linear(2, 2)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(self.frozen(x)) * self.scale


def odd_model(rank: int, world_size: int) -> list[float]:
    """The largest difference of parameters, of owners of slices and of whole parameters."""
    groups = Communicators.create()
    return [_odd_model(rank, world_size, groups, sharding) for sharding in get_args(Sharding)]


def _odd_model(rank: int, world_size: int, groups: Communicators, sharding: Sharding) -> float:
    torch.manual_seed(1)
    alone, model = Odd().double(), Odd().double()
    model.load_state_dict(alone.state_dict())
    states = ShardedStates(model, groups.states, sharding=sharding)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for name, master in states.master_parameters():
        whole = sharding == "by_parameter"
        assert (master.shape == shapes[name]) if whole else (master.dim() == 1)
    assert sum(unit.elements for unit in states.units) == sum(
        parameter.numel() for parameter in alone.parameters() if parameter.requires_grad
    )
    masters = [master for _, master in states.master_parameters()]
    optimizer = torch.optim.AdamW([{"params": masters}], lr=0.01)
    single = torch.optim.AdamW(
        [parameter for parameter in alone.parameters() if parameter.requires_grad], lr=0.01
    )
    data = torch.randn(3, world_size, 4, 6, dtype=torch.float64)
    dist.broadcast(data, 0)
    for batch in data:
        single.zero_grad(set_to_none=False)
        alone(batch.flatten(0, 1)).square().sum().backward()
        # What no loss reaches has a gradient of zero in a sum over ranks, and decays.
        for parameter in alone.unused.parameters():
            parameter.grad = torch.zeros_like(parameter)
        single.step()
        states.all_gather()
        if rank:  # rank 0 has no work in this step and takes part all the same
            parts = batch[rank : rank + 1] if rank > 1 else batch[:2]
            for index, part in enumerate(parts):
                last = index == len(parts) - 1
                states.backward(model(part).square().sum(), last=last)
        states.reduce_scatter()
        optimizer.step()
    whole = dict(states.export())
    assert bool(whole) == (rank == 0)
    states.materialize()
    current = dict(model.named_parameters())
    trained = [name for name, parameter in alone.named_parameters() if parameter.requires_grad]
    assert not whole or whole.keys() == set(trained)
    assert all(torch.equal(whole[name], current[name]) for name in whole)
    return max(
        (current[name] - parameter).abs().max().item()
        for name, parameter in alone.named_parameters()
        if parameter.requires_grad
    )


def test_tied_frozen_and_unused_parameters() -> None:
    for rank in run_ranks(odd_model, 3):
        assert max(rank) < 1e-12


class MixedLayer(nn.Module):
    """A bf16 product after an fp32 norm, as in models loaded in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.product = nn.Linear(6, 6).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.product(self.norm(x.float()).bfloat16())


def mixed_model(rank: int, world_size: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Each parameter's gradient summed over ranks, and that of one process."""
    groups = Communicators.create()
    torch.manual_seed(1)
    alone = nn.Sequential(nn.ModuleList([MixedLayer(), MixedLayer()]))
    model = copy.deepcopy(alone)
    states = ShardedStates(model, groups.states)
    dtypes = {parameter.dtype for parameter in model.parameters()}
    assert dtypes == {torch.float32, torch.bfloat16}
    assert all(master.dtype == torch.float32 for _, master in states.master_parameters())
    data = torch.randn(world_size, 4, 6).bfloat16()

    def loss(layers: nn.Module, batch: Tensor) -> Tensor:
        for layer in layers[0]:  # type: ignore[index]
            batch = layer(batch)
        return batch.float().square().sum()

    loss(alone, data.flatten(0, 1)).backward()  # type: ignore[no-untyped-call]
    states.all_gather()
    states.backward(loss(model, data[rank]), last=True)
    states.reduce_scatter()
    for unit in states.units:
        unit.master.copy_(unit.reduced)
    states.materialize()
    return {
        name: (mine.detach().float(), other.grad.float())
        for (name, mine), other in zip(model.named_parameters(), alone.parameters(), strict=True)
        if other.grad is not None
    }


def test_a_layer_of_two_dtypes() -> None:
    for gradients in run_ranks(mixed_model, 2):
        assert len(gradients) == 8
        for name, (mine, other) in gradients.items():
            assert torch.allclose(mine, other, rtol=0.02, atol=0.02), name


def differing(rank: int, world_size: int, difference: str) -> None:
    groups = Communicators.create()
    torch.manual_seed(1)
    model = Odd()
    model.register_buffer("correction", torch.arange(5.0))
    if rank == 1 and difference == "frozen":
        model.frozen.weight.data[2, 3] += 1e-6
    if rank == 1 and difference == "buffer":
        model.correction = model.correction.flip(0)
    if rank == 1 and difference == "shape":
        model.scale = nn.Parameter(torch.ones(7))
    if rank == 1 and difference == "count":
        model.more = nn.Linear(1, 1)
    ShardedStates(model, groups.states)


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        ("frozen", "frozen.weight of rank 1 is not trained and has other values"),
        ("buffer", "correction of rank 1 is not trained and has other values"),
        ("shape", "scale of rank 1 differs in shape, dtype or in being trained"),
        ("count", "the model of rank 1 has 13 parameters and buffers, 3 of them not trained"),
    ],
)
def test_models_that_differ_between_ranks_are_rejected(difference: str, text: str) -> None:
    for message in run_ranks_expecting_failure(differing, 2, difference):
        assert message.startswith(f"ValueError: {text}")


@pytest.mark.parametrize(
    "tensor", [torch.arange(10.0), torch.arange(7, dtype=torch.uint8), torch.ones(5).bfloat16()]
)
def test_a_checksum_sees_values_and_their_order(tensor: Tensor) -> None:
    same = checksum(tensor.clone())
    assert checksum(tensor) == same
    for at in range(len(tensor)):
        other = tensor.clone()
        other[at] += 1
        assert checksum(other) != same
    if len(set(tensor.tolist())) > 1:
        assert checksum(tensor.flip(0)) != same
    assert checksum(torch.zeros(0)) == 0


class Biased(nn.Module):
    """Weights of whole vectors of 16 bytes, and biases that are less."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, width) for width in (3, 8, 5))


def misaligned(rank: int, world_size: int) -> list[str]:
    """List parameters of whole vectors that begin between two of them."""
    model = Biased().bfloat16()
    ShardedStates(model, Communicators.create().states)
    return [
        name
        for name, parameter in model.named_parameters()
        if not parameter.nbytes % 16 and parameter.storage_offset() * 2 % 16
    ]


def test_parameters_begin_where_kernels_of_grouped_products_take_them() -> None:
    assert run_ranks(misaligned, 2) == [[], []]
