"""Options that planning rejects: one line with the problem, for every way to plan."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from seqplan import (
    Cost,
    Infeasible,
    Mode,
    Phase,
    Planner,
    Proposal,
    StepPlanner,
    Workload,
    balance,
    find_profile,
    make_proposal,
)
from seqplan.planner.balance.phase import list_loads
from seqplan.planner.errors import OptionError
from seqplan.planner.problem import PlanningOptions
from seqplan.planner.sync.times import GivenSyncTimes

LLAMA, ZERO_3 = "llama-7b-a800-80gb", "gpt-7b-a100-40gb"
COST = Cost(1e-6, 0.05, 20.0)
SLOW = [1.5] + [1.0] * 7
SYNC = GivenSyncTimes(0.0, 0.0, "none", 500.0, 500.0)
SMALL = Workload(8, 9, 10)
TWO = Phase("v", [1, 2], Cost(0, 1, 0))

PROFILE_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"profile": None}, TypeError, "profile: None. Give a profile"),
    ({"expert_parallel": True}, ValueError, "has no expert_parallel True, only 1. State one"),
    ({"layout": 4}, TypeError, "layout: 4. Give text"),
    ({"layout": "tp3"}, ValueError, "has no layout tp3; it has "),
    ({"prove": 1}, TypeError, "prove: 1. Give True or False"),
    ({"max_len": 10**15}, ValueError, "max_len must be 2147483647 or less"),
    ({"gpus": 1, "profile": "llama-32b-a800-80gb"}, Infeasible, "fits 1 GPU; add"),
    ({"execution": "no"}, ValueError, "one of uniform, static, regroup, lockstep: 'no'"),
    ({"execution": "uniform"}, ValueError, "execution uniform is one scheme, which a proposal"),
    ({"execution": "static", "profile": ZERO_3}, ValueError, f"static: profile {ZERO_3} is of"),
    ({"sync": SYNC, "profile": ZERO_3}, ValueError, "is of ZeRO-3, whose gathers "),
    ({"sync": 1000.0}, TypeError, "sync: 1000.0. Give a GivenSyncTimes, 'derived' or None"),
    ({"micro_step_multiple": 2}, ValueError, "micro_step_multiple 2: execution is regroup, which"),
    (
        {"execution": "lockstep", "micro_step_multiple": 0},
        ValueError,
        "micro_step_multiple must be 1 or more: 0",
    ),
    (
        {"execution": "lockstep", "micro_step_multiple": 10**9},
        ValueError,
        "micro_step_multiple must be 4096 or fewer: 1000000000",
    ),
    ({"execution": "lockstep", "exact": True}, ValueError, "exact is for pipelines: the problem"),
    ({"exact": True, "prove": False}, ValueError, "close bound. Leave prove out"),
    ({"exact": True, "profile": ZERO_3}, ValueError, f"exact is for pipelines: profile {ZERO_3}"),
    *(({"seed": seed}, OptionError, f"below 2**63: {seed}") for seed in (-1, 1.5, True, 2**63)),
    ({"shapes": 8}, TypeError, "shapes: 8. Give sizes, as choose_plan_shapes(plans, 8) does"),
    ({"shapes": [0]}, OptionError, "shapes: 0. Give tokens on a rank"),
    ({"shapes": [9, 8]}, OptionError, "shapes [9, 8]: must ascend"),
    ({"shapes": [64]}, OptionError, "shapes: sequences have up to max_len 32768 tokens, and"),
    ({"shapes": [32_768], "exact": True}, OptionError, "exact with shapes: not supported"),
    ({"shapes": [32_768], "execution": "lockstep"}, OptionError, "shapes with execution lockstep"),
    ({"shapes": [32_768], "slowdown": SLOW}, OptionError, "shapes with slowdown"),
    ({"slowdown": [1.0]}, ValueError, "slowdown has 1 factors for 8 ranks. Give one for each"),
    ({"slowdown": 8}, TypeError, "slowdown: 8. Give a list of factors, one for each rank"),
    ({"trainer": ["megatron"]}, OptionError, "trainer must be one of seqplan, "),
    ({"slowdown": [0.5] + [1.0] * 7}, ValueError, "slowdown of rank 0: 0.5. Give 1 for"),
    ({"slowdown": [None] * 7 + [1.0]}, Infeasible, "ranks lost: 0, 1, 2, 3, 4, 5, 6. 1 of 8 ranks"),
    (
        {"slowdown": SLOW, "execution": "regroup"},
        OptionError,
        "slowdown with execution regroup: on",
    ),
    (
        {"slowdown": SLOW, "execution": "lockstep"},
        OptionError,
        "slowdown is for pipelines: the problem is in lockstep. Leave slowdown out",
    ),
    (
        {"slowdown": SLOW, "profile": ZERO_3},
        OptionError,
        f"slowdown is for pipelines: profile {ZERO_3} is of ZeRO-3, which runs in lockstep. Leave ",
    ),
    (
        {"shapes": [32_768], "profile": ZERO_3},
        OptionError,
        f"shapes are for pipelines: profile {ZERO_3} is of ZeRO-3, which runs in lockstep. Leave ",
    ),
    (
        {"slowdown": SLOW, "exact": True},
        OptionError,
        "exact solves pipelines of equal ranks. Leave",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), PROFILE_OPTIONS)
def test_options_of_a_profile_that_cannot_be(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {"profile": "llama3-8b-h100-80gb", "gpus": 8, "max_len": 32_768, **options}
    with pytest.raises(error, match=re.escape(message)) as rejected:
        Planner.from_profile(**arguments)
    assert "\n" not in str(rejected.value)


@pytest.fixture(scope="module")
def in_lockstep() -> Proposal:
    workload = Workload(16, 16_384, 60_000)
    return make_proposal(find_profile(LLAMA), workload, [700, 2900] * 60, execution="lockstep")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"execution": "regroup"}, "execution regroup: the proposal was made for lockstep"),
        ({"execution": "static"}, "execution static: the proposal was made for lockstep"),
        ({"packing": "even"}, "packing even: the problem is in lockstep"),
        ({"packing": "even"}, r"one micro-batch a group .* Leave packing out"),
    ],
)
def test_options_of_a_proposal_in_lockstep_that_cannot_be(
    options: dict[str, Any], message: str, in_lockstep: Proposal
) -> None:
    with pytest.raises(ValueError, match=message):
        Planner.from_proposal(in_lockstep, **options)


def test_robust_plans_are_of_pipelines(in_lockstep: Proposal) -> None:
    with pytest.raises(ValueError, match="robust is for pipelines: the problem is in lockstep"):
        StepPlanner(in_lockstep, PlanningOptions(robust=0.1))


def propose(**options: Any) -> Proposal:
    profile = find_profile(options.pop("profile", LLAMA))
    return make_proposal(profile, Workload(16, 16_384, 60_000), [700, 2900] * 60, **options)


def plan_loads(loads: Any, **options: Any) -> None:
    Planner.from_profile("llama3-8b-h100-80gb", 8, 32_768, **options).plan([900, 800], loads=loads)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: propose(method="eq4", execution="lockstep"), ValueError, "eq4 chooses strategies"),
        (lambda: propose(sync=5), TypeError, "sync: 5. Give a GivenSyncTimes, 'derived' or None"),
        (
            lambda: make_proposal(LLAMA, SMALL, [5]),
            TypeError,
            f"profile: '{LLAMA}'. Give a profile",
        ),
        (lambda: make_proposal(find_profile(LLAMA), 8, [5]), TypeError, "workload: 8. Give Work"),
        (lambda: propose(execution="micro-steps"), ValueError, "one of uniform, static, regroup, "),
        (lambda: propose(execution="static", profile=ZERO_3), ValueError, "is of ZeRO-3"),
        (
            lambda: propose(execution="static", trainer="megatron"),
            ValueError,
            "execution static: megatron runs lockstep or uniform",
        ),
        (
            lambda: PlanningOptions(robust=0.7),
            ValueError,
            "robust must be a share from 0 to 0.5: 0",
        ),
        (
            lambda: PlanningOptions(robust=0.1, exact=True),
            ValueError,
            "exact solves at the profile's costs",
        ),
        (lambda: Planner.from_proposal(9), TypeError, "proposal: 9. Give a proposal or its file"),
        (lambda: Planner(LLAMA), TypeError, "Give Planner.from_profile or Planner.from_proposal"),
        (lambda: Planner.from_profile(LLAMA, gpus=8), TypeError, "max_len"),
        (
            lambda: Planner.from_profile(LLAMA, 8, 10_000_000).plan([9_000_000]),
            Infeasible,
            "no scheme of the profile holds",
        ),
        (
            lambda: plan_loads([Phase("v", [1], Cost(0, 1, 0))]),
            ValueError,
            "load v: has 1 samples, there are 2 lengths",
        ),
        (
            lambda: plan_loads([TWO], execution="lockstep"),
            OptionError,
            "loads with execution lockstep: only groups that stay within a step have it",
        ),
        (lambda: plan_loads([TWO], exact=True), OptionError, "exact with loads: not"),
        (lambda: plan_loads([TWO], packing="even"), OptionError, "packing even with"),
        (lambda: list_loads([3], 2), TypeError, "loads: "),
        (lambda: plan_loads([TWO, TWO]), ValueError, "loads: v, v. Name each phase once"),
        (lambda: Phase(5, [1], COST), TypeError, "load: name 5. Give text"),
        (lambda: plan_loads(8), TypeError, "loads: 8. Give a list of Phase("),
        (lambda: Planner.from_profile(LLAMA, 8, 9).plan([5], ids=7), TypeError, "ids: 7. Give a"),
        (lambda: balance([5], 1, 10, COST, keep_together=7), TypeError, "keep_together: 7. Give"),
        (lambda: balance([5], 1, 10, None), TypeError, "cost: None. Give a Cost"),
        (lambda: balance([5], 1, cost=COST), TypeError, "capacity is missing. Give the tokens"),
        (lambda: balance(5, 1, 10, COST), TypeError, "lengths: 5. Give a list, an array"),
        (lambda: balance("57", 1, 10, COST), TypeError, "lengths: '57'. Give a list"),
        (
            lambda: balance([5], 1, 10, COST, execution="no"),
            ValueError,
            "execution must be lockstep or uniform",
        ),
        (lambda: balance([5], 1, 10, COST, equal_samples=1), TypeError, "equal_samples: 1"),
        (lambda: balance([5], 1, 10, COST, barrier="no"), TypeError, "barrier: 'no'. Give True"),
        (lambda: Cost(1e300, 0.0, 0.0), ValueError, "coefficient a must be a number from 0 to"),
        (lambda: Cost.from_profile(LLAMA, None), TypeError, "scheme: None. Give a scheme, such as"),
        (lambda: Cost.from_profile(None, "tp1"), TypeError, "profile: None. Give a profile, its"),
        (lambda: Mode.list_from_profile(LLAMA, None, 8), TypeError, "scheme: None. Give a scheme"),
        (lambda: Mode.list_from_profile(LLAMA, "tp1", True), ValueError, "gpus must be a whole"),
        (lambda: Planner.from_profile(LLAMA, 8, 9).prove(3), TypeError, "plan: 3. Give one of"),
        (lambda: COST.calibrate([([[5]], "3")]), TypeError, "measured: '3'. Give milliseconds"),
        (lambda: COST.calibrate([[]]), TypeError, "measured: []. Give micro-batches and"),
        (lambda: COST.calibrate([(5, 1.0)]), TypeError, "measured: micro-batches 5. Give a list"),
        (
            lambda: COST.calibrate([([5, 6], 1.0)]),
            TypeError,
            "measured: micro-batches [5, 6]. Give",
        ),
        (lambda: COST.calibrate([([["a"]], 3.0)]), TypeError, "measured: length 'a'. Give whole"),
        (lambda: COST.calibrate([([[5.5]], 3.0)]), TypeError, "measured: length 5.5. Give whole"),
        (lambda: Planner.from_profile(LLAMA, 8, 9, shapes=5.0), TypeError, "shapes: 5.0. Give"),
        (lambda: COST.calibrate([([[]], 3.0)]), ValueError, "measured: a micro-batch without"),
        (lambda: Planner.from_profile(LLAMA, 8, 9, shapes=[]), ValueError, "shapes: none. Give"),
    ],
)
def test_calls_that_cannot_be(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)) as rejected:
        call()
    assert "\n" not in str(rejected.value)
