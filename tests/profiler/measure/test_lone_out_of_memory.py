"""One rank runs out of memory while the others wait for it: no hang, and the next run goes on."""

from pathlib import Path

import pytest
import torch
from ranks import run_ranks

from seqplan.costs.fit.sample_file import read_samples
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure import lost_ranks as alarm
from seqplan.profiler.measure.design import DesignPoint
from seqplan.profiler.measure.run import Task, measure
from seqplan.profiler.measure.stage import Call, MeasuredStage
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.sequence_parallel.context import AttentionContext

SCHEME = Scheme(ulysses=2)
TASK = Task(
    config=ModelConfig(hidden=16, layers=1, heads=2, kv_heads=2, ffn=16, vocab=10),
    layers=1,
    device="cpu",
    dtype="float32",
    schemes=(SCHEME,),
    points=tuple(DesignPoint("fit", (length,)) for length in (16, 32, 64, 128)),
    repeats=2,
)


def measured(rank: int, world_size: int, folder: Path, lacking: int) -> list[int]:
    """Tokens of what fits; rank ``lacking`` has no room for 64 of them, before it is waited for."""
    alarm.PATIENCE_S, alarm.HEAD_START_S = 1.0, 30.0
    whole = MeasuredStage.layers_call

    def layers_call(stage: MeasuredStage, context: AttentionContext) -> Call:
        call = whole(stage, context)

        def forward() -> torch.Tensor:
            if rank == lacking and world_size * context.positions.shape[0] >= 64:
                raise torch.OutOfMemoryError("no room")
            return call.forward()

        return Call(forward, call.backward)

    MeasuredStage.layers_call = layers_call  # type: ignore[method-assign]

    def complain(text: str) -> None:
        folder.joinpath("output").write_text(text)

    _, samples, _ = measure(TASK, folder / "s.jsonl", rank, world_size, None, complain)
    return [sample.tokens for sample in samples if not sample.oom]


@pytest.mark.parametrize("lacking", [0, 1])
def test_ranks_that_wait_in_vain_end_and_the_next_run_goes_on(tmp_path: Path, lacking: int) -> None:
    with pytest.raises(AssertionError, match=r"rank \d (died, exit code 1|failed)"):
        run_ranks(measured, 2, tmp_path, lacking)
    assert (tmp_path / "output").read_text() == (
        f"u2, 64 tokens: rank {lacking} is out of memory while others wait for it; kept as out of "
        "memory: start again to go on with the rest"
    )
    _, samples = read_samples(tmp_path / "s.jsonl")
    assert [sample.tokens for sample in samples] == [16, 32, 64]
    assert [sample.oom for sample in samples] == [False, False, True]
    assert {(sample.scheme, sample.turn) for sample in samples} == {(SCHEME, 0)}
    # Neither this micro-batch nor a longer one is tried again, in no round.
    assert run_ranks(measured, 2, tmp_path, lacking) == [[16, 32], []]
    _, samples = read_samples(tmp_path / "s.jsonl")
    assert [(sample.tokens, sample.turn) for sample in samples[3:]] == [(16, 1), (32, 1)]
