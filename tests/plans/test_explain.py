"""The account of a step: what a reader must find in it, and that it always fits a terminal."""

from dataclasses import replace

from golden_plans import COSTS, U2, heterogeneous, micro_steps, regrouping
from hypothesis import given
from plan_builder import batch, pipeline, plan_of
from plan_strategies import Costed, costed_plans

from seqplan.plans.explain import WIDTH, explain
from seqplan.plans.scheme import Scheme

HETEROGENEOUS = """\
step 16: 2,709 tokens in 5 sequences on 8 ranks
predicted 600.0 ms, lower bound 300.0 ms, gap 100.00 %
  of that 510.6 ms pipelines, 89.4 ms after the last
pipelines 1×tp4 + 1×pp3

scheme  #  ranks  batches  seqs  longest  tokens  fill  time ms  slack ms
tp4     0  0–3          1     2    2,001   2,131  52 %    510.6       0.0
pp3     1  4–6          2     3      512     578  50 %    322.5     188.1

binding: pipeline 0 (tp4 on ranks 0–3), by its longest sequence: 2,001 tokens, 98 % of its time
idle: 1 rank (7)

candidate strategy  bound ms  time ms
1×tp4 + 1×pp3          300.0    600.0  best
2×pp3                  700.5        –  pruned by its bound"""

REFORMING = """\
pipelines 1×r3 + 3×u2 + 1×tp1, ranks regroup within the step
  groups change 3 times: were each to take 3 ms, the pipelines would end 0.38 % later

scheme  #  ranks  batches  seqs  longest  tokens  start ms  time ms  slack ms
r3      0  0–2          1     1    1,500   1,500       0.0    527.0       0.0
u2      2  0–1          1     1      777     777     527.0    260.3       0.0
        1  3–4          1     2      600     933       0.0    236.1     545.1
        4  4–5          1     1       41      41     236.1      6.1     545.1
tp1     3  2            2     2      301     501     527.0    154.4     105.9

binding: pipeline 0 (r3 on ranks 0–2), by its only sequence, 1,500 tokens
binding: pipeline 2 (u2 on ranks 0–1), by its only sequence, 777 tokens"""


def test_a_heterogeneous_step_with_its_profile() -> None:
    assert explain(heterogeneous()[0], COSTS) == HETEROGENEOUS


def test_times_of_other_strategies_with_stages_are_estimates() -> None:
    plan = heterogeneous()[0]
    selection = tuple(
        replace(entry, predicted_ms=entry.predicted_ms or 701.25) for entry in plan.selection
    )
    lines = explain(replace(plan, selection=selection), COSTS).splitlines()
    assert lines[-3:] == [
        "1×tp4 + 1×pp3          300.0    600.0  best",
        "2×pp3                  700.5   ≈701.2",
        "≈: an estimate, as of strategies with stages only the best is simulated",
    ]


def test_ranks_that_regroup() -> None:
    assert explain(regrouping()[0]).endswith(REFORMING)


def test_micro_steps_are_a_column() -> None:
    text = explain(micro_steps()[0])
    assert "in 2 micro-steps" in text
    assert "  micro-step  " in text
    assert "start ms" not in text
    assert "may be above the simulation" not in text


def test_an_empty_step() -> None:
    text = explain(regrouping()[1])
    assert "binding: nothing runs" in text
    assert "idle: 5 ranks (1–5)" in text


def test_the_total_binds_where_no_sequence_is_long() -> None:
    scheme = Scheme()
    lengths = (100, 90, 80, 70)
    work = batch(COSTS, scheme, dict(enumerate(lengths)))
    plan = plan_of((pipeline(scheme, (0,), work),), lengths, work.cost_ms)
    assert "by its total: the longest of 4 sequences is 29 % of its tokens" in explain(plan)
    assert "by its total: the longest of 4 sequences is 31 % of its time" in explain(plan, COSTS)


def test_a_slow_pipeline_binds_by_its_total_at_any_factor() -> None:
    scheme, lengths = Scheme(), (100, 90, 80, 70)
    work = batch(COSTS, scheme, dict(enumerate(lengths)))
    slow = replace(pipeline(scheme, (0,), work), slowdown=2.0, predicted_ms=2 * work.cost_ms)
    text = explain(plan_of((slow,), lengths, slow.predicted_ms), COSTS)
    assert "by its total: the longest of 4 sequences is 31 % of its time" in text


def test_long_sequences_have_no_groups_of_lost_ranks() -> None:
    work = batch(COSTS, U2, {0: 600}), batch(COSTS, U2, {1: 600})
    plan = plan_of((pipeline(U2, (0, 1), *work),), (600, 600), 1000.0, world_size=4)
    costs = {Scheme(): COSTS[Scheme()], U2: COSTS[U2]}
    assert "long:" not in explain(plan, costs)
    lost = replace(plan, lost_ranks=(3,))
    assert "long: 2 sequences need groups of 2 GPUs or more, of which 1 fit" in explain(lost, costs)


def test_pipelines_that_bind_are_counted_beyond_three() -> None:
    scheme = Scheme()
    four = tuple(pipeline(scheme, (i,), batch(COSTS, scheme, {i: 9})) for i in range(4))
    text = explain(plan_of(four, (9,) * 4, four[0].predicted_ms))
    assert "binding: 1 more pipeline without slack" in text
    assert "binding: pipeline 0 (tp1 on rank 0), by its only sequence" in text


def test_many_pipelines_of_a_scheme_are_summed_up() -> None:
    scheme = Scheme()
    pipelines = tuple(
        pipeline(scheme, (rank,), batch(COSTS, scheme, {rank: 10 + rank})) for rank in range(200)
    )
    lines = explain(plan_of(pipelines, tuple(range(10, 210)), 1000.0)).splitlines()
    assert len(lines) < 20
    assert "tp1     199  199             1     1      209     209     60.3       0.0" in lines
    rest = next(line for line in lines if "194 more" in line)
    assert rest.split() == ["194", "more", "194", "194", "203", "20,661", "≤", "58.1", "≥", "2.2"]


def test_a_scheme_without_costs_has_no_fill() -> None:
    only = {scheme: cost for scheme, cost in COSTS.items() if scheme != Scheme(pp=3)}
    line = next(row for row in explain(heterogeneous()[0], only).splitlines() if "pp3  " in row)
    assert " ? " in line


@given(costed_plans())
def test_any_plan_fits_a_terminal(costed: Costed) -> None:
    wide = replace(costed.plan, step=10**30)
    for text in (explain(costed.plan), explain(costed.plan, costed.costs), explain(wide)):
        assert all(len(line) <= WIDTH for line in text.splitlines())
        assert not any(line != line.rstrip() for line in text.splitlines())
