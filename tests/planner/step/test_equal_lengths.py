"""Steps of (nearly) equal lengths, and few sequences: plans are no slower than simple ones."""

from collections.abc import Iterator
from math import inf

import numpy as np
import pytest

from seqplan import Planner, Workload, find_profile
from seqplan.costs.recomputation_mode import ModeModel
from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.simulation.one_f_one_b import simulate_ms

NEAR = 1.001


def list_hills(number: int, together: int) -> Iterator[list[int]]:
    """List ways to split ``number`` sequences: ``together`` each, fewer in some at both ends."""
    for first in range(3):
        for last in range(3):
            rest = number - first - last
            if rest < 0:
                continue
            full, left = divmod(rest, together)
            middle = [together] * full
            yield [1] * first + middle + [left] * (left > 0) + [1] * last
            yield [1] * first + [left] * (left > 0) + middle + [1] * last


def time_simply(model: SchemeModel, gpus: int, length: int, number: int) -> float:
    """Time the best hill of equal sequences on as many pipelines of one scheme as fit (ms)."""
    pipelines = gpus // model.scheme.gpus
    of_pipeline, best = -(-number // pipelines), inf
    for together in range(1, 5):
        costs = [inf, *(cost_ms(model, length, n)[0] for n in range(1, together + 1))]
        if costs[-1] == inf:
            break
        shares = [0.0, *(cost_ms(model, length, n)[1] for n in range(1, together + 1))]
        for hill in list_hills(of_pipeline, together):
            times = [costs[n] for n in hill], [shares[n] for n in hill]
            best = min(best, simulate_ms(times[0], model.scheme.pp, times[1]))
    return best


def cost_ms(model: SchemeModel, length: int, number: int) -> tuple[float, float]:
    """Return the least cost of a micro-batch in any mode (ms), and forward's share of it."""
    modes = model.modes or (
        ModeModel("", model.latency, model.max_len, 1.0, model.forward_fraction),
    )
    fitting = [
        (mode.latency.micro_batch_ms([length] * number), mode.forward_fraction)
        for mode in modes
        if model.scheme.pad_micro_batch([length] * number) <= mode.max_len
    ]
    return min(fitting, default=(inf, 0.0))


@pytest.mark.parametrize(
    ("profile", "gpus", "layout", "length", "number"),
    [
        ("llama3-70b-h100-80gb", 32, "tp4.pp4", 2048, 80),
        ("qwen3-32b-h100-80gb", 16, "tp4.pp2", 4096, 72),
        ("qwen3-32b-h200-141gb", 32, "tp4.pp2", 2643, 38),
        ("llama3-8b-h100-80gb", 16, "tp2.pp2", 4096, 47),
        ("llama3-70b-h100-80gb", 64, "tp8.pp4", 1000, 20),
        ("llama-32b-a800-80gb", 64, "tp4.pp4", 6000, 71),
        ("llama3-70b-h100-80gb", 32, "tp4.pp4", 2745, 17),
    ],
)
def test_equal_sequences_share_micro_batches(
    profile: str, gpus: int, layout: str, length: int, number: int
) -> None:
    lengths, times = [length] * number, []
    for chosen in (layout, None):
        planner = Planner.from_profile(
            profile, gpus, 16_384, layout=chosen, execution="static", sync=None
        )
        times.append(planner.plan(lengths).predicted_ms)
    models = Workload(gpus, 16_384, 1).models(find_profile(profile))
    simple = [
        time_simply(model, gpus, length, number)
        for scheme, model in models.items()
        if f"tp{scheme.tp}.pp{scheme.pp}" == layout
    ]
    assert times[0] <= NEAR * min(simple)
    assert times[1] <= NEAR * times[0]


def test_nearly_equal_sequences_share_micro_batches() -> None:
    lengths = np.random.default_rng(7).integers(4_000, 4_097, 64).tolist()
    planner = Planner.from_profile(
        "llama-32b-a800-80gb", 32, 4_096, layout="tp4.pp2", execution="static", sync=None
    )
    equal = planner.plan([4_096] * 64)
    assert planner.plan(lengths).predicted_ms <= NEAR * equal.predicted_ms


@pytest.mark.parametrize(
    ("profile", "gpus", "max_len", "lengths", "layout"),
    [
        ("llama-13b-a800-80gb", 64, 131_072, [118_931] * 4 + [1_600] * 48, "tp8"),
        ("llama3-70b-h100-80gb", 128, 131_072, [92_995] * 11, "tp8.pp2"),
        ("llama3-8b-h200-141gb", 8, 32_768, [24_027] * 6 + [332] * 12, "tp1"),
        ("llama-13b-a800-80gb", 32, 4_096, [2_134] * 100, "tp1"),
    ],
)
def test_the_layout_that_is_fastest_after_exchanges_is_chosen(
    profile: str, gpus: int, max_len: int, lengths: list[int], layout: str
) -> None:
    times = []
    for chosen in (None, layout):
        planner = Planner.from_profile(profile, gpus, max_len, layout=chosen, execution="static")
        plan = planner.plan(lengths)
        times.append(plan.predicted_ms + (plan.sync_ms or 0.0))
    assert times[0] <= NEAR * times[1]


def test_few_sequences_are_exchanged_on_several_strategies() -> None:
    """Longest first, two pipelines of four ranks take longer than four of two, and then less."""
    planner = Planner.from_profile("llama3-8b-h200-141gb", 8, 4_096, execution="static", sync=None)
    lengths = [2_537, 1_741, 3_499, 1_639, 2_014, 2_286]
    models = Workload(8, 4_096, 1).models(find_profile("llama3-8b-h200-141gb"))
    (model,) = (model for scheme, model in models.items() if str(scheme) == "u4")
    halves = [[3_499, 1_741, 1_639], [2_537, 2_286, 2_014]]
    by_hand = max(
        min(mode.latency.micro_batch_ms(half) for mode in model.modes if sum(half) <= mode.max_len)
        for half in halves
    )
    assert planner.plan(lengths).predicted_ms <= NEAR * by_hand


def test_without_proof_the_plan_is_the_same() -> None:
    lengths = [149, 448, 419, 49, 297, 113, 75, 1_336, 565, 99, 4_200, 494, 1_948, 1_431, 89, 159]
    lengths += [203, 398, 1_057, 3_651, 1_239, 106, 187, 49, 422, 71, 137, 90, 8_383]
    times = [
        Planner.from_profile("qwen3-32b-h200-141gb", 8, 16_384, execution="static", prove=prove)
        .plan(lengths)
        .predicted_ms
        for prove in (True, False)
    ]
    assert times[1] <= NEAR * times[0]
