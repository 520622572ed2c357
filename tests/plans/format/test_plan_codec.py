"""The JSON of a plan: exact both ways, rejected with one line if it is not a plan."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from plan_builder import plan_of
from plan_strategies import plans

from seqplan.plans.format.codec import PlanError, digest, from_json, to_json
from seqplan.plans.groups import process_groups
from seqplan.plans.plan import Considered, MicroBatch, Plan, PlannedPipeline, Provenance
from seqplan.plans.scheme import Scheme, Strategy


def small_plan() -> Plan:
    pipeline = PlannedPipeline(
        Scheme(tp=2), (0, 1), (MicroBatch((1, 0), 12, 12, 3.25),), 3.25, micro_step=0
    )
    considered = Considered(Strategy.from_counts({Scheme(tp=2): 1}), 3.25, None)
    more: Any = {"step": 17, "provenance": Provenance("1.0", 0, "sha256:p", None), "world_size": 3}
    more |= {"ids": (70, 71), "selection": (considered,)}
    return plan_of((pipeline,), (5, 7), 3.25, gap=0.0, **more)


SMALL = (
    '{"digest":"%s","gap":0.0,"groups":[[0,1]],"idle_ranks":[2],"loss_tokens":10,'
    '"lower_bound_ms":3.25,"pipelines":[{"micro_batches":[{"cost_ms":3.25,"padded_tokens":12,'
    '"sequences":[1,0],"tokens":12}],"micro_step":0,"predicted_ms":3.25,"ranks":[0,1],"scheme":'
    '{"pp":1,"ring":1,"tp":2,"ulysses":1}}],"predicted_ms":3.25,"provenance":{"profile":"sha256:p",'
    '"proposal":null,"seed":0,"version":"1.0"},"schema":2,"selection":[{"lower_bound_ms":3.25,'
    '"predicted_ms":null,"strategy":[{"count":1,"pp":1,"ring":1,"tp":2,"ulysses":1}]}],'
    '"sequences":{"ids":[70,71],"lengths":[5,7]},"step":17,"tokens":12,"world_size":3}'
)
DIGEST = "sha256:063479ee89c12e3688610fc82b9a171199f8324a4cf4db7651254ca4baf8f8ff"


def sealed(fields: dict[str, Any]) -> str:
    """The text of these fields with the digest that belongs to them."""
    fields = {name: value for name, value in fields.items() if name != "digest"}
    body = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(fields | {"digest": "sha256:" + hashlib.sha256(body.encode()).hexdigest()})


def test_text_is_the_documented_one() -> None:
    assert to_json(small_plan()) == SMALL % DIGEST
    assert digest(small_plan()) == DIGEST


@given(plans())
def test_round_trip(plan: Plan) -> None:
    text = to_json(plan)
    assert "\n" not in text
    back = from_json(text)
    assert back == plan
    assert to_json(back) == text
    assert json.loads(text)["digest"] == digest(plan)


def test_micro_step_is_written_only_where_there_is_one() -> None:
    plan = small_plan()
    plain = replace(plan, pipelines=(replace(plan.pipelines[0], micro_step=None),))
    assert '"micro_step"' not in to_json(plain)
    assert from_json(to_json(plain)) == plain


def test_times_are_canonical_floats() -> None:
    plan = replace(small_plan(), predicted_ms=4)
    assert '"predicted_ms":4.0,"provenance"' in to_json(plan)
    fields = json.loads(to_json(plan))
    fields["predicted_ms"] = 4  # as a writer without a float type has it
    assert from_json(json.dumps(fields)) == plan


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("schema",), 1, "schema: is 1, this version reads 2. Plan the steps again"),
        (("schema",), True, "schema: is true, this version reads 2"),
        (("schema",), 2.0, "schema: must be an integer ≥ 1: 2.0"),
        (("step",), True, "step: must be an integer ≥ 0: true"),
        (("step",), 17.0, "step: must be an integer ≥ 0: 17.0"),
        (("step",), -1, "step: must be an integer ≥ 0: -1"),
        (("step",), 2**63, "step: must be an integer ≥ 0: 9223372036854775808"),
        (("world_size",), 0, "world_size: must be an integer ≥ 1: 0"),
        (("provenance", "seed"), "0", 'provenance.seed: must be an integer ≥ 0: "0"'),
        (("provenance", "version"), 1, "provenance.version: must be a string: 1"),
        (("provenance", "proposal"), 1, "provenance.proposal: must be a string: 1"),
        (("provenance",), [], "provenance: must be an object: a list"),
        (("sequences", "lengths"), [5, 0], "sequences.lengths[1]: must be an integer ≥ 1: 0"),
        (("sequences", "ids"), [1, True], "sequences.ids[1]: must be an integer ≥ 0: true"),
        (("sequences", "ids"), [1], "sequences: 1 ids but 2 lengths"),
        (("idle_ranks",), [2**63], "idle_ranks[0]: must be an integer ≥ 0: 9223372036854775808"),
        (("groups",), [[0, 1], 3], "groups[1]: must be a list of integers: 3"),
        (("groups",), {}, "groups: must be a list: an object"),
        (("idle_ranks",), None, "idle_ranks: must be a list of integers: null"),
        (("gap",), "0", 'gap: must be a finite number ≥ 0: "0"'),
        (("gap",), False, "gap: must be a finite number ≥ 0: false"),
        (("gap",), -0.5, "gap: must be a finite number ≥ 0: -0.5"),
        (("gap",), 10**400, "gap: must be a finite number ≥ 0: 1000"),
        (("pipelines", 0, "micro_step"), None, "pipelines[0].micro_step: must be an integer"),
        (("pipelines", 0, "scheme", "tp"), 0, "pipelines[0].scheme.tp: must be an integer ≥ 1"),
        (
            ("pipelines", 0, "micro_batches", 0, "cost_ms"),
            None,
            "pipelines[0].micro_batches[0].cost_ms: must be a finite number ≥ 0: null",
        ),
        (("selection", 0, "strategy", 0, "count"), 0, "selection[0].strategy[0].count: must be"),
        (("selection", 0, "predicted_ms"), [], "selection[0].predicted_ms: must be a finite"),
    ],
)
def test_wrong_values_are_named(path: tuple[str | int, ...], value: object, expected: str) -> None:
    fields = json.loads(to_json(small_plan()))
    target = fields
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    with pytest.raises(PlanError) as raised:
        from_json(sealed(fields), origin="plans.jsonl:3")
    assert str(raised.value).startswith(f"plans.jsonl:3: {expected}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("place", ["", "provenance", "sequences"])
def test_unknown_fields_are_rejected_or_ignored(place: str) -> None:
    fields = json.loads(to_json(small_plan()))
    (fields[place] if place else fields)["color"] = "crimson"
    text = sealed(fields)
    dot = f"{place}." if place else ""
    with pytest.raises(PlanError, match=rf"^plan: {dot}color: is not a field of the plan format$"):
        from_json(text)
    assert from_json(text, strict=False) == small_plan()
    with pytest.raises(PlanError, match="digest"):
        from_json(text.replace("crimson", "blue"), strict=False)


def test_unknown_fields_deep_down() -> None:
    fields = json.loads(to_json(small_plan()))
    fields["pipelines"][0]["micro_batches"][0]["color"] = 1
    with pytest.raises(PlanError, match=r"pipelines\[0\]\.micro_batches\[0\]\.color"):
        from_json(sealed(fields))
    assert from_json(sealed(fields), strict=False) == small_plan()


@pytest.mark.parametrize("name", sorted(json.loads(SMALL % "")))
def test_missing_fields_are_named(name: str) -> None:
    fields = json.loads(to_json(small_plan()))
    del fields[name]
    with pytest.raises(PlanError, match=f"^plan: {name}: is missing$"):
        from_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not a JSON plan"),
        ("[]", r"^plan: must be an object: a list\. Name another file"),
        ((SMALL % DIGEST)[:-1], r"not a JSON plan: .*\. It ends within a plan; copy it again"),
        ('{"schema":2,"dig', r"not a JSON plan: .*\. It ends within a plan; copy it again"),
        ('{"schema":2,,', r"not a JSON plan: .*\. Name a plan file"),
        ("NaN", "NaN is not a number"),
        ((SMALL % DIGEST).replace('"gap":0.0', '"gap":Infinity'), "Infinity is not a number"),
        ((SMALL % DIGEST).replace('"gap":0.0', '"gap":1e999'), "gap: must be a finite number"),
        ((SMALL % DIGEST).replace('"gap":0.0', '"gap":0.0,"gap":0.0'), "'gap' is written twice"),
        ((SMALL % DIGEST).replace('"step":17', '"step":18'), "digest: .* does not match"),
        ((SMALL % DIGEST).replace('"1.0"', r'"\ud800"'), "cannot be written as JSON"),
        ("[" * 100_000, "not a JSON plan"),
        ('{"schema":' + "9" * 5000 + "}", "not a JSON plan"),
    ],
)
def test_texts_that_are_no_plan(text: str, expected: str) -> None:
    with pytest.raises(PlanError, match=expected) as raised:
        from_json(text)
    assert "\n" not in str(raised.value)


def test_a_strategy_out_of_order_is_rejected() -> None:
    fields = json.loads(to_json(small_plan()))
    smallest = {"tp": 1, "pp": 1, "ulysses": 1, "ring": 1, "count": 1}
    fields["selection"][0]["strategy"].insert(0, smallest)
    with pytest.raises(PlanError, match=r"selection\[0\]\.strategy: .*not in order"):
        from_json(sealed(fields))


def test_values_that_json_lacks_are_rejected_when_written() -> None:
    with pytest.raises(PlanError, match="plan of step 17: cannot be written"):
        to_json(replace(small_plan(), gap=float("nan")))


@pytest.mark.parametrize("name", ["lost_ranks", "shapes"])
def test_lists_that_are_absent_if_empty_are_not_empty(name: str) -> None:
    fields = {**json.loads(to_json(small_plan())), name: []}
    with pytest.raises(PlanError, match=f"{name}: is empty. Leave it out"):
        from_json(sealed(fields))


def test_the_digest_covers_every_field() -> None:
    plan = small_plan()
    changed = [
        replace(plan, step=18),
        replace(plan, gap=0.1),
        replace(plan, ids=(71, 70)),
        replace(plan, groups=()),
        replace(plan, selection=()),
        replace(plan, provenance=replace(plan.provenance, seed=1)),
        replace(plan, pipelines=(replace(plan.pipelines[0], micro_step=None),)),
        replace(plan, pipelines=(replace(plan.pipelines[0], slowdown=1.5),)),
    ]
    assert len({digest(other) for other in [plan, *changed]}) == len(changed) + 1


def test_a_large_plan_is_fast() -> None:
    scheme, ranks = Scheme(tp=2, ulysses=2), iter(range(1024))
    pipelines = []
    for index in range(256):
        batches = tuple(
            MicroBatch(tuple(range(first, first + 4)), 4000, 4000, 12.345 + first)
            for first in range(index * 24, index * 24 + 24, 4)
        )
        pipelines.append(
            PlannedPipeline(scheme, tuple(next(ranks) for _ in range(4)), batches, 80.125)
        )
    plan = replace(
        small_plan(),
        world_size=1024,
        ids=tuple(range(10**6, 10**6 + 6144)),
        lengths=(1000,) * 6144,
        pipelines=tuple(pipelines),
        groups=process_groups(pipelines),
    )
    text = to_json(plan)
    writing = min(_timed(lambda: to_json(plan)) for _ in range(5))
    reading = min(_timed(lambda: from_json(text)) for _ in range(5))
    print(f"write {writing * 1e3:.1f} ms, read {reading * 1e3:.1f} ms, {len(text)} bytes")
    # Generous: the point is to notice an accident, not to measure the machine.
    assert writing < 0.3
    assert reading < 0.3


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
