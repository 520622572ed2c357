"""Cases in which a wrong order, head or sum shows: each is compared with one process."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from random_plans import one_pipeline_plan
from ranks import run_ranks
from staged_runs import CONFIG, GATES, Case, Outcome, differences, sequence_parallel, staged

from seqplan import Plan, Scheme
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.losses.token_losses import token_loss
from seqplan.runtime.models.llama import Llama
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.training.run_step import apply_gradients


@dataclass(frozen=True)
class PipelineCase(Case):
    """One pipeline over all ranks, each sequence in a separate micro-batch."""

    scheme: Scheme = field(default_factory=Scheme)
    lengths: tuple[int, ...] = ()

    def plans(self) -> list[Plan]:
        lengths = list(self.lengths)
        return [
            one_pipeline_plan(self.scheme, lengths, step=step, packed=False)
            for step in range(self.steps)
        ]


SMALL = replace(CONFIG, layers=2)
UNEVEN = PipelineCase(
    3,
    5,
    config=replace(SMALL, hidden=96, heads=12, kv_heads=4),
    steps=2,
    scheme=Scheme(ulysses=3),
    lengths=(40, 7, 19),
)
"""Each rank has four query heads, of which three share one key head and one has another."""

EQUAL = PipelineCase(2, 6, config=SMALL, steps=2, scheme=Scheme(pp=2), lengths=(16,) * 5)
"""Gradients of any two micro-batches could be swapped without a message of another size."""

BOTH = PipelineCase(
    4, 7, config=SMALL, steps=2, scheme=Scheme(ulysses=2, ring=2), lengths=(50, 1, 23)
)
SPLIT = PipelineCase(4, 8, config=SMALL, steps=2, scheme=Scheme(tp=2, pp=2), lengths=(16, 9, 30))


@pytest.mark.parametrize("case", [UNEVEN, BOTH], ids=["u3 of 12 and 4 heads", "u2.r2"])
def test_attention_over_ranks_is_that_of_one_process(case: PipelineCase) -> None:
    worst = differences(case, run_ranks(sequence_parallel, case.ranks, case))
    assert all(error <= gate for error, gate in zip(worst, GATES[case.dtype], strict=True)), worst


WORDS = PipelineCase(4, 10, config=SMALL, steps=2, scheme=Scheme(tp=4), lengths=(16, 9))
"""Of 251 words the third rank has those from 125 on, which is not twice 62."""

STAGED = {"pp2, equal micro-batches": EQUAL, "tp2.pp2": SPLIT, "tp4": WORDS}


@pytest.mark.parametrize("case", STAGED.values(), ids=STAGED)
def test_a_pipeline_is_that_of_one_process(case: PipelineCase) -> None:
    worst = differences(case, run_ranks(staged, case.ranks, case))
    assert all(error <= gate for error, gate in zip(worst, GATES[case.dtype], strict=True)), worst


COUNT = 1001
"""More ones than bf16 can count: their sum would stay at 256, and that of ranks be rounded."""


def sum_ones(rank: int, world_size: int) -> list[float]:
    """Sum gradients of one, in bf16, of many micro-batches on every rank."""
    groups = Communicators.create()
    model = torch.nn.Linear(3, 2, bias=False).bfloat16()
    states = ShardedStates(model, groups.states)
    states.all_gather()
    for number in range(COUNT):
        loss = model(torch.ones(3, dtype=torch.bfloat16)).sum()
        states.backward(loss, last=number == COUNT - 1)
    states.reduce_scatter()
    return [
        value
        for unit in states.units
        for _, _, _, owned in unit.iterate_owned()
        for value in owned.tolist()
    ]


def test_gradients_of_bf16_are_summed_in_fp32() -> None:
    for owned in run_ranks(sum_ones, 2):
        assert set(owned) == {2.0 * COUNT}


def clip_tiny(rank: int, world_size: int) -> tuple[list[float], list[float]]:
    """Clip gradients with a norm near torch's epsilon, by the states and by torch."""
    groups = Communicators.create()
    torch.manual_seed(0)
    model, plain = torch.nn.Linear(3, 1, bias=False), torch.nn.Linear(3, 1, bias=False)
    states = ShardedStates(model, groups.states)
    plain.load_state_dict(model.state_dict())
    (master,) = (value for _, value in states.master_parameters())
    states.all_gather()
    loss = 1e-5 * model(torch.ones(3)).sum()
    states.backward(loss, last=True)
    states.reduce_scatter()
    apply_gradients(states, torch.optim.SGD([master], lr=1e5), loss.detach(), 2e-6)
    (1e-5 * plain(torch.ones(3)).sum()).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 2e-6)
    torch.optim.SGD(plain.parameters(), lr=1e5).step()
    return master.tolist(), plain.weight.flatten().tolist()


def test_clipping_is_that_of_torch() -> None:
    ((ours, theirs),) = run_ranks(clip_tiny, 1)
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-7)


def normalize(rank: int, world_size: int) -> str:
    groups = Communicators.create()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="normalizes over all tokens") as rejected:
        ShardedStates(model, groups.states)
    return str(rejected.value)


def test_batch_normalization_is_rejected_by_name() -> None:
    for text in run_ranks(normalize, 2):
        assert text.startswith("1 (BatchNorm1d) normalizes over all tokens of a call")


COMPILED = PipelineCase(
    2, 9, config=replace(CONFIG, layers=1), steps=2, scheme=Scheme(ulysses=2), lengths=(30, 7, 12)
)


def compile_layers(rank: int, world_size: int) -> Outcome:
    """Run the case with compiled layers on the first rank, whose graphs end at attention.

    The other rank would compile the same, which takes seconds.
    """
    if rank:
        return sequence_parallel(rank, world_size, COMPILED)
    compiled: list[int] = []

    def count_nodes(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    class Compiled(PipelineCase):
        def model(self, seed: int, **options: object) -> Llama:
            model = super().model(seed, **options)
            for layer in model.layers:
                layer.compile(backend=count_nodes)
            return model

    outcome = sequence_parallel(rank, world_size, Compiled(**vars(COMPILED)))
    assert compiled
    (graph_break,) = torch._dynamo.utils.counters["graph_break"]
    assert "function `attention`" in graph_break  # nothing within it is traced
    return outcome


def test_compiled_layers_leave_their_graph_at_attention() -> None:
    worst = differences(COMPILED, run_ranks(compile_layers, 2, timeout_s=150))
    assert all(error <= gate for error, gate in zip(worst, GATES[COMPILED.dtype], strict=True)), (
        worst
    )


def test_each_label_counts_by_its_weight() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, weights = torch.tensor([3, 0, -100, 6, 1]), torch.tensor([0.5, 2.0, 9.0, 0.0, 1.25])
    rows = [row for row in range(5) if labels[row] >= 0]
    expected = -sum(weights[row] * logits[row].log_softmax(0)[labels[row]] for row in rows)
    assert float(token_loss(logits, labels, weights)) == pytest.approx(float(expected), rel=1e-12)
