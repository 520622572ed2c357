"""What a pipeline's stages do while a micro-batch is measured, on real ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor

from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.design import DesignPoint
from seqplan.profiler.measure.measurer import Measurer
from seqplan.profiler.measure.stage import Call, Neighbours, with_transfers
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.sequence_parallel.peers import Peer, Peers, Transfer
from seqplan.runtime.tensor_parallel.groups import TensorGroups

CONFIG = ModelConfig(hidden=32, heads=4, kv_heads=2, ffn=48, vocab=50, layers=6)


class Recorder(Peers):
    """Real transfers, written down: (rank, received there or not, bytes)."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__(group)
        self.moved: list[tuple[int, str, int]] = []

    def transfer(self, sends: Sequence[Peer], receives: Sequence[Peer]) -> Transfer:
        for direction, peers in (("to", sends), ("from", receives)):
            self.moved += [(rank, direction, tensor.nbytes) for tensor, rank in peers]
        return super().transfer(sends, receives)


def moved_by(rank: int, world_size: int) -> list[list[tuple[int, str, int]]]:
    """Transfers after forward and after backward of a pipeline of one rank a stage."""
    peers = Recorder(dist.group.WORLD)
    neighbors = Neighbours(rank - 1 if rank else None, rank + 1 if rank + 1 < world_size else None)
    ran: list[str] = []

    def forward() -> Tensor:
        ran.append("forward")
        return torch.zeros(())

    call = with_transfers(
        Call(forward, lambda out: ran.append("backward")), neighbors, torch.zeros(10, 4), peers
    )
    out = call.forward()
    after_forward = list(peers.moved)
    peers.moved.clear()
    call.backward(out)
    assert ran == ["forward", "backward"]
    return [after_forward, peers.moved]


def test_hidden_states_go_on_and_gradients_back() -> None:
    first, middle, last = run_ranks(moved_by, 3)
    assert first == [[(1, "to", 160)], [(1, "from", 160)]]
    assert middle == [[(2, "to", 160), (0, "from", 160)], [(0, "to", 160), (2, "from", 160)]]
    assert last == [[(1, "from", 160)], [(1, "to", 160)]]


def samples(rank: int, world_size: int) -> list[tuple[str, int, int]]:
    """Scheme, and bytes kept by the layers and beyond them, of one micro-batch."""
    bench = Bench(
        config=CONFIG,
        layers=2,
        device=torch.device("cpu"),
        dtype=torch.float32,
        rank=rank,
        world_size=world_size,
        attention_group=dist.group.WORLD,
        control_group=dist.group.WORLD,
        tensor_groups=TensorGroups(dist.group.WORLD, (2,)),
    )
    measurer = Measurer(bench)
    by_scheme = []
    for scheme in (Scheme(), Scheme(pp=3), Scheme(tp=2, pp=2), Scheme(pp=2, ring=2)):
        sample = measurer.measure(scheme, DesignPoint("packed", (40, 3, 21)))
        assert not sample.oom
        assert min(sample.layers_ms) > 0
        assert min(sample.ends_ms) > 0
        layers_bytes = sample.layers_saved_bytes
        by_scheme.append((str(scheme), layers_bytes, sample.saved_bytes - layers_bytes))
    return by_scheme


def test_every_rank_reports_the_slowest_stage() -> None:
    first, *others = run_ranks(samples, 4, timeout_s=120)
    assert all(other == first for other in others)
    by_scheme = {scheme: (layers_bytes, more) for scheme, layers_bytes, more in first}
    layers, ends = by_scheme["tp1"]
    # A stage's layers keep as much; the last has the head and the loss, not the embedding, which
    # keeps its tokens.
    stage_layers, stage_ends = by_scheme["pp3"]
    assert stage_layers == layers
    assert stage_ends == ends - 8 * (40 + 3 + 21)
    # Everything that is kept is halved by tp, norms and residuals included.
    assert by_scheme["tp2.pp2"][0] < 0.55 * layers
    assert by_scheme["pp2.r2"][0] < 0.6 * layers
