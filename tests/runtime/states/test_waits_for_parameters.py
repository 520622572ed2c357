"""Forward waits for the parameters of modules that no module calls as a whole."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from ranks import run_ranks, run_ranks_expecting_failure
from torch import Tensor, nn

from seqplan.plans.views.optimizer_sharding import Sharding
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.states.sharded_states import ShardedStates

WIDTH, LAYERS = 6, 3


class Model(nn.Module):
    """Layers in a container that forward iterates over, and a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        linear = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        layers: dict[str, Any] = {
            "sequential": nn.Sequential(*linear),
            "dictionary": nn.ModuleDict({f"layer {at}": one for at, one in enumerate(linear)}),
            "lists of lists": nn.ModuleList(nn.ModuleList([one]) for one in linear),
            "parameters": nn.ParameterList(one.weight for one in linear),
            "nested": nn.ModuleDict({"embedding": linear[0], "layers": nn.Sequential(*linear[1:])}),
        }
        self.layers = layers[kind if kind in layers else "sequential"]
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = self.layers
        if self.kind == "nested":
            layers = [layers["embedding"], *layers["layers"]]
        for layer in layers.values() if self.kind == "dictionary" else layers:
            if self.kind == "parameters":
                x = torch.tanh(x @ layer)
            else:
                x = torch.tanh((layer[0] if self.kind == "lists of lists" else layer)(x))
        return x @ self.head.weight if self.kind == "direct" else self.head(x)


KINDS = ("sequential", "dictionary", "lists of lists", "parameters", "nested")


def make_model(kind: str) -> Model:
    torch.manual_seed(1)
    return Model(kind).double()


def train(
    rank: int, world_size: int, kind: str, sharding: Sharding, groups: Communicators
) -> tuple[list[str], list[str], float]:
    """Name the units, those that a forward left in transfer, and the largest difference."""
    alone = make_model(kind)
    model = copy.deepcopy(alone)
    states = ShardedStates(model, groups.states, sharding=sharding)
    optimizer = torch.optim.SGD(
        [{"params": [master for _, master in states.master_parameters()]}], lr=0.1
    )
    single = torch.optim.SGD(alone.parameters(), lr=0.1)
    data = torch.randn(3, world_size, 4, WIDTH, dtype=torch.float64)
    dist.broadcast(data, 0)
    late: list[str] = []
    for batch in data:
        single.zero_grad()
        alone(batch.flatten(0, 1)).square().sum().backward()
        single.step()
        states.all_gather()
        output = model(batch[rank])
        pending = zip(states.units, states._gathering, strict=True)
        late += [unit.name for unit, finish in pending if finish is not None]
        states.backward(output.square().sum(), last=True)
        states.reduce_scatter()
        optimizer.step()
    states.materialize()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    worst = max((mine - other).abs().max().item() for mine, other in pairs)
    return [unit.name for unit in states.units], late, worst


def train_all(rank: int, world_size: int) -> dict[str, tuple[list[str], list[str], float]]:
    groups = Communicators.create()
    results = {kind: train(rank, world_size, kind, "flat", groups) for kind in KINDS}
    whole = train(rank, world_size, "sequential", "by_parameter", groups)
    return {**results, "by_parameter": whole}


def test_parameters_of_iterated_containers_are_waited_for() -> None:
    for results in run_ranks(train_all, 2):
        for kind, (_, late, difference) in results.items():
            assert not late, kind
            assert difference < 1e-12, kind
        assert results["sequential"][0] == ["layers.0", "layers.1", "layers.2", "head"]
        names = [f"layers.layer {at}" for at in range(LAYERS)]
        assert results["dictionary"][0] == [*names, "head"]
        names = ["layers.embedding", "layers.layers.0", "layers.layers.1"]
        assert results["nested"][0] == [*names, "head"]


def use_weight(rank: int, world_size: int, sharding: Sharding) -> None:
    train(rank, world_size, "direct", sharding, Communicators.create())


def test_direct_use_of_a_weight_is_rejected() -> None:
    for message in run_ranks_expecting_failure(use_weight, 2, "flat"):
        assert message == (
            "RuntimeError: parameters were used before they were there: head. Call the module "
            "that has them, or give them to the module whose forward uses them"
        )


class Stem(nn.Module):
    """A parameter beyond the container that forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x * self.scale)


class ScaledSequential(nn.Sequential):
    """Layers and a parameter that none of them has."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.scale)


class WithStem(nn.Module):
    """Modules with containers in them, layers that are containers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scaled = Stem(), ScaledSequential()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(2)))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(self.scaled(self.stem(x))))
        return output


def list_waits(rank: int, world_size: int) -> tuple[list[str], list[str]]:
    """Name the units, and those that forward waits for, in order."""
    model, waited = WithStem(), list[str]()
    states: Any = ShardedStates(model, Communicators.create().states)
    finish = states.finish_all_gather

    def record(at: int) -> None:
        if states._gathering[at] is not None:
            waited.append(states.units[at].name)
        finish(at)

    states.all_gather()
    states.finish_all_gather = record
    model(torch.ones(2, WIDTH))
    return [unit.name for unit in states.units], waited


def test_modules_with_containers_inside_are_one_unit() -> None:
    ((names, waited),) = run_ranks(list_waits, 1)
    assert names == ["stem", "scaled", "layers.0", "layers.1", "head"]
    assert waited == names


class Layer(nn.Module):
    """A layer whose products could be called alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


def count_graphs(rank: int, world_size: int) -> int:
    """Count the graphs of compiled layers over two steps."""
    graphs: list[int] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(len(inputs))
        return graph.forward

    model: Any = nn.Sequential(*(Layer() for _ in range(4)))
    states = ShardedStates(model, Communicators.create().states)
    for layer in model:
        layer.compile(backend=count)
    for _ in range(2):
        states.all_gather()
        states.backward(model(torch.ones(2, WIDTH)).sum(), last=True)
        states.reduce_scatter()
    return len(graphs)


def test_compiled_layers_share_their_graphs() -> None:
    (graphs,) = run_ranks(count_graphs, 1)
    assert graphs <= 2
