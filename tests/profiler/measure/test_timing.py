"""How often a call is run, and which runs count; never how long it takes."""

import pytest
import torch

from seqplan.profiler.measure import timing
from seqplan.profiler.measure.bench import Bench
from seqplan.profiler.measure.stage import Call
from seqplan.profiler.measure.timing import Timer
from seqplan.runtime.models.llama import ModelConfig
from seqplan.runtime.stopwatch import Clock

BENCH = Bench(ModelConfig(), 1, torch.device("cpu"), torch.float32, 0, 1)
RUN = ["forward", "backward", "forget"]


def runs(queued: bool) -> list[str]:
    """List the calls when one is timed three times after one uncounted run."""
    happened: list[str] = []

    def forward() -> torch.Tensor:
        happened.append("forward")
        return torch.zeros(())

    call = Call(forward, lambda out: happened.append("backward"))
    timer = Timer(BENCH, lambda: happened.append("forget"), queued=queued)
    times = timer.times(call, 1, 3)
    assert len(times.whole_ms) == len(times.forward_ms) == len(times.yardstick_ms) == 3
    return happened


def test_a_queue_is_led_into_by_the_same_call() -> None:
    """Its gradients are forgotten before the timed run, which then makes new ones, too."""
    assert runs(queued=True) == RUN + 2 * RUN * 3


def test_a_cpu_and_long_calls_have_no_lead_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs(queued=False) == RUN + RUN * 3
    monkeypatch.setattr(timing, "LEAD_IN_BELOW_S", 0.0)
    assert runs(queued=True) == RUN + RUN * 3


def test_a_clock_of_processor_time_leaves_waiting_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.process_time", iter([1.0, 1.25]).__next__)
    clock = Clock(torch.device("cpu"), processor_time=True)
    assert clock.ms(clock.mark(), clock.mark()) == 250.0
