"""Arguments that balancing rejects: one line with the problem."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from balance_cases import COST

from seqplan import Cost, Mode, Phase, SlowRanks, balance
from seqplan.planner.balance.fixed_ranks import balance_fixed

NAN = float("nan")
LIGHT, HEAVY = Mode("none", 40, Cost(0.001, 1.0, 3.0)), Mode("full", 200, Cost(0.001, 1.35, 3.0))
TEXT = Phase("text", [1], COST)


def small(lengths: Any = (4, 4), ranks: int = 2, capacity: int = 8, **options: Any) -> Any:
    """Balance two sequences over two ranks."""
    return balance(lengths, ranks, capacity, COST, **options)


def load(*loads: Phase, **options: Any) -> Any:
    """Balance loads over two ranks."""
    return balance(ranks=2, loads=list(loads), **options)


def text(sequences: Any, cost: Any = COST, capacity: Any = None) -> Phase:
    return Phase("text", sequences, cost, capacity)


VALUES: list[tuple[Callable[[], object], str]] = [
    (lambda: small([]), "no sequences"),
    (lambda: small([5, 0]), "sequence 1 has length 0"),
    (lambda: small([5, -3]), "sequence 1 has length -3"),
    (lambda: small([5, 2.5]), "sequence 1 has length 2.5"),
    (lambda: small([5, NAN]), "sequence 1 has length nan"),
    (lambda: small([5, True]), "sequence 1 has length True"),
    (lambda: small([5, 11]), "sequence 1 has 11 tokens; a micro-batch holds 8"),
    (lambda: small(ranks=0), "ranks must be a whole number of 1 or more, not 0"),
    (lambda: small(ranks=10**9), "ranks must be 65536 or fewer, not 1000000000"),
    (lambda: small(count_multiple=10**9), "count_multiple must be 4096 or fewer"),
    (lambda: small(count_multiple=0), "count_multiple"),
    (lambda: small(capacity=2**63), "capacity must be 9223372036854775807 or fewer"),
    (lambda: small(capacity=0), "capacity must be a whole number of 1 or more, not 0"),
    (lambda: small(keep_together=["a"]), "keep_together has 1 keys for 2 sequences"),
    (lambda: small([5, 5], keep_together=["a", "a"]), "'a': its 2 sequences have 10 tokens"),
    (lambda: small([4] * 3, equal_samples=True), "3 sequences cannot be assigned equally to 2"),
    (lambda: small(pad_to=16), "holds nothing padded to multiples of 16"),
    (lambda: small([9], 1, 15, pad_to=8), "9 tokens, padded to multiples of 8; "),
    (lambda: Mode("none", 0, COST), "mode none: capacity must be a whole number of 1 or more, not"),
    (lambda: balance([5], 1, modes=[LIGHT, LIGHT]), "Name each once"),
    (lambda: balance([5, 300], 1, modes=[LIGHT, HEAVY]), "a micro-batch holds 200: truncate"),
    (lambda: small(shapes=0), "shapes: 0. Give a whole number of 1 or more"),
    (lambda: small(shapes=[]), "shapes: none. Give their number, or tokens of each"),
    (lambda: small([4, 6], shapes=[2, 4]), "shapes up to 4 tokens: a sequence has 6. Give one "),
    (lambda: small(shapes=[4, 16]), "shape of 16 tokens: a micro-batch holds 8. Leave it out or "),
    (lambda: small(shapes=2, keep_together=[0, 0]), "shapes with keep_together or equal_samples"),
    (lambda: small(slowdown=[1.0]), "slowdown has 1 factors for 2 ranks. Give one for each rank"),
    (lambda: small(slowdown=[1.0, 0.9]), "slowdown of rank 1: 0.9. Give 1 for the speed"),
    (lambda: small(slowdown=[NAN, 1.0]), "slowdown of rank 0: nan. Give 1 for the speed"),
    (lambda: small(slowdown=[1.0, 1e9]), "slowdown of rank 1: 1000000000.0. Give 1 for the speed"),
    (lambda: small(slowdown=[None, None]), "all 2 ranks are lost. Give one that computes"),
    (
        lambda: small(slowdown=[1.0, 2.0], equal_samples=True),
        "equal_samples with different factors of slowdown",
    ),
    (
        lambda: load(Phase("vision", [1, 2], COST), TEXT),
        "samples of the loads: vision 2, text 1. Give the same samples to each",
    ),
    (lambda: load(TEXT, TEXT), "loads: text, text. Name each phase once"),
    (
        lambda: load(Phase("vision", [1, 0], COST), text([1, 0])),
        "sample 1 has no tokens in any load. Leave it out or give it some",
    ),
    (lambda: load(TEXT, capacity=8, pad_to=2), "loads with capacity, pad_to: each load states it."),
    (lambda: text([[3, -1]]), "load text: sample 0 has -1 tokens. Give 0 or more"),
    (lambda: text([]), "load text: has no samples. Give tokens for each sample"),
    (lambda: text([1], capacity=0), "load text: capacity must be a whole number of 1 or more, not"),
    (lambda: text([4, 9], capacity=8), "load text: sample 1 has 9 tokens, a micro-batch holds 8."),
    (lambda: SlowRanks(2).observe([1.0], [1.0, 1.0]), "rank_ms has 1 times for 2 ranks. Give one "),
    (lambda: SlowRanks(2).observe([1.0, 1.0], [1.0]), "measured_ms has 1 times for 2 ranks. Give "),
    (lambda: SlowRanks(2).observe([1.0] * 2, [1, -1.0]), "measured_ms of rank 1: -1.0. Give milli"),
    (lambda: SlowRanks(2).observe([NAN, 1.0], [1.0, 1]), "rank_ms of rank 0: nan. Give millisecon"),
    (lambda: balance_fixed([[10] * 3, [10]], 20, COST), "has 1 sequences for 2 micro-batches or "),
    (lambda: balance_fixed([[30]], 20, COST), "a micro-batch holds 20"),
    (lambda: balance_fixed([[10], []], 20, COST), "a rank has no sequences to pack"),
]
TYPES: list[tuple[Callable[[], object], str]] = [
    (lambda: small(modes=[LIGHT]), "stated by each mode"),
    (lambda: balance([5], 1), "or modes"),
    (lambda: balance([5], 1, modes=[]), "Give a list of Mode"),
    (lambda: Mode(3, 40, COST), "name: 3. Give the mode's name"),  # type: ignore[arg-type]
    (lambda: Mode("none", 40, None), "mode none: cost: None. Give a Cost"),  # type: ignore[arg-type]
    (lambda: small({5, 6}), "lengths: {5, 6}. Give a list, an array or a tensor of tokens"),
    (lambda: small(slowdown={1.0, 2.0}), "slowdown: {1.0, 2.0}. Give a list of factors"),
    (lambda: small(keep_together={1, 2}), "keep_together: {1, 2}. Give a list of keys"),
    (lambda: small(keep_together=[[1], [2]]), "keep_together: [1]. Give text, numbers or tuples"),
    (lambda: small(shapes=True), "shapes: True. Give their number, or tokens of each"),
    (lambda: small(shapes=[8, 2.5]), "shapes: 2.5. Give their number, or tokens of each"),
    (lambda: small(slowdown=[1.0, "slow"]), "slowdown of rank 1: 'slow'. Give a number from 1 on"),
    (lambda: small(slowdown=[1.0, True]), "slowdown of rank 1: True. Give a number from 1 on"),
    (lambda: load(), "loads: []. Give a list of Phase(name, sequences, cost)"),
    (lambda: load(TEXT, barrier="yes"), "barrier: 'yes'. Give True or False"),
    (lambda: balance(ranks=2), "lengths are missing. Give the tokens of each sequence, or loads"),
    (lambda: text([1.5]), "load text: sample 0 has 1.5. Give tokens as whole numbers"),
    (lambda: text(np.ma.masked_array([5, 7], [0, 1])), "load text: sample 1 has masked. Give"),
    (lambda: SlowRanks(2).observe([1.0] * 2, [1, "a"]), "measured_ms of rank 1: 'a'. Give milli"),
    (lambda: SlowRanks(2).observe([1.0] * 2, [1, True]), "measured_ms of rank 1: True. Give mill"),
    (lambda: SlowRanks(2).observe([1.0] * 2, 3), "measured_ms: 3. Give a list of milliseconds"),
    (lambda: text([1], "fast"), "load text: cost 'fast'. Give a Cost"),
]


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [(error, *row) for error, rows in ((ValueError, VALUES), (TypeError, TYPES)) for row in rows],
)
def test_arguments_are_rejected(
    error: type[Exception], call: Callable[[], object], message: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
