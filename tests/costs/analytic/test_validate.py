"""How well the analytic model ranks published results, as docs/analytic-model.md states."""

import json
from collections import Counter
from pathlib import Path

import pytest

from seqplan.costs.analytic.validation.expert_runs import list_expert_runs
from seqplan.costs.analytic.validation.held_out import (
    check_odd_rows,
    leave_sources_out,
    list_scaling_pairs,
)
from seqplan.costs.analytic.validation.memory_figures import list_verdicts
from seqplan.costs.analytic.validation.published import list_left_out, read_published
from seqplan.costs.analytic.validation.published_runs import list_runs
from seqplan.costs.analytic.validation.table_check import TableCheck, judges
from seqplan.costs.analytic.validation.tables import checks
from seqplan.costs.analytic.validation.training_tables import foundry_runs, nvidia_runs

COLLECTED = Path(__file__).with_name("collected_rows.json")


@pytest.fixture(scope="module")
def by_name() -> dict[str, TableCheck]:
    return {check.name: check for check in checks()}


@pytest.mark.parametrize(
    ("name", "figures", "correlation", "error"),
    [
        ("USP table 3", 16, 0.97, 0.05),
        ("USP table 4", 24, 0.99, 0.12),
        ("USP table 5", 9, 0.93, 0.03),
        ("llama-7b-a800-80gb: latency", 32, 0.99, 0.07),
        ("llama-13b-a800-80gb: latency", 20, 0.99, 0.04),
        ("llama-32b-a800-80gb: latency", 21, 0.98, 0.06),
        ("longest sequences", 25, 0.99, 0.07),
        ("InternEvo, memory", 16, 0.89, 0.3),
        ("llama-7b-a800-80gb: MaxLen", 13, 0.99, 0.06),
        ("llama-13b-a800-80gb: MaxLen", 12, 0.99, 0.09),
        ("llama-32b-a800-80gb: MaxLen", 13, 0.99, 0.06),
        ("FlexSP: all-to-all", 6, 0.94, 0.22),
        ("llm-foundry, a100-80gb bf16", 61, 0.99, 0.02),
        ("llm-foundry, h100-80gb bf16", 52, 0.99, 0.04),
        ("llm-foundry, h100-80gb fp8", 7, 0.99, 0.05),
        ("NVIDIA, h100-80gb fp8", 25, 0.98, 0.03),
        ("NVIDIA, h100-80gb bf16", 53, 0.97, 0.04),
        ("NVIDIA, Blackwell", 39, 0.92, 0.08),
        ("InternEvo, a100-80gb bf16", 27, 0.57, 0.07),
        ("torchtitan, a100-80gb bf16", 2, 0.99, 0.05),
        ("Nemotron 3", 50, 0.95, 0.47),
        ("experts, AutoModel", 5, 0.99, 0.28),
        ("experts, Grok-1", 11, 0.99, 0.08),
        ("attention kernels, a100-80gb", 23, 0.98, 0.07),
        ("attention kernels, h100-80gb", 84, 0.97, 0.04),
    ],
)
def test_ranks_and_sizes(
    by_name: dict[str, TableCheck], name: str, figures: int, correlation: float, error: float
) -> None:
    check = by_name[name]
    assert len(check.rows) == figures
    assert check.rank_correlation >= correlation
    assert check.median_error <= error


def test_the_predicted_best_is_the_published_best_or_within_3_percent(
    by_name: dict[str, TableCheck],
) -> None:
    lost = {
        (check.name, group): loss
        for check in by_name.values()
        for group, (_, _, loss) in check.winners().items()
        if loss > 0.03
    }
    assert not lost


def test_every_scheme_agrees_on_the_longest_that_fits(by_name: dict[str, TableCheck]) -> None:
    for name, schemes in (("llama-7b", 13), ("llama-13b", 12), ("llama-32b", 15)):
        reason = by_name[f"{name}-a800-80gb: MaxLen"].missing
        assert reason.startswith(f"On {schemes} of {schemes} schemes both agree")


def test_every_published_run_fits() -> None:
    foundry, nvidia = read_published("llm_foundry.json"), read_published("nvidia_h100.json")
    verdicts = Counter(
        [
            estimated.verdict
            for name in ("a100-80gb bf16", "h100-80gb bf16", "h100-80gb fp8")
            for estimated, _ in foundry_runs(foundry, *name.split())
        ]
        + [estimated.verdict for estimated, _ in nvidia_runs(nvidia)]
    )
    assert verdicts.total() == 61 + 52 + 7 + 22
    assert verdicts["does not fit"] == 0
    assert verdicts["fits"] > 40


def test_every_collected_row_is_in_a_table_or_left_out_with_a_reason(
    by_name: dict[str, TableCheck],
) -> None:
    """Rows by the file that they were collected in, ``megatron_bridge`` by the tables' names."""
    collected = json.loads(COLLECTED.read_text())
    rows = {run["id"] for run in (*list_runs(), *list_expert_runs())}
    rows |= {row.identifier for check in by_name.values() for row in check.rows}
    rows |= {f"alst-{row}" for row in range(len(by_name["longest sequences"].rows))}
    memory = len(by_name["InternEvo, memory"].rows)
    rows |= {f"memory-{row}" for row in range(memory)}
    rows |= {f"memory-{memory + 2 + row}" for row in range(len(list_verdicts()))}
    kernels = [check.rows for name, check in by_name.items() if name.startswith("attention ker")]
    rows |= {f"kernels-{row}" for row in range(sum(map(len, kernels)))}
    left_out = {name for left in list_left_out() for name in left["rows"]}
    named = collected.pop("megatron_bridge")
    named += [f"{file}-{row}" for file, count in collected.items() for row in range(count)]
    assert len(named) == 525
    assert [name for name in named if (name in rows) == (name in left_out)] == []
    assert left_out <= set(named)
    assert all(left["reason"] and left["source"] for left in list_left_out())


def test_runs_that_users_reported_fit_as_predicted() -> None:
    verdicts = list_verdicts()
    assert {fits for _, _, fits in verdicts} == {True, False}
    assert [source for source, predicted, fits in verdicts if predicted != fits] == []


def test_longest_sequences_are_within_a_fifth_and_name_their_limit(
    by_name: dict[str, TableCheck],
) -> None:
    rows = by_name["longest sequences"].rows
    off = [row for row in rows if not 1 / 1.2 <= row.predicted / row.published <= 1.2]
    assert [(row.group, row.published) for row in off] == [("Llama 3 70B", 1.2e6)]
    assert off[0].predicted / off[0].published < 1.35
    assert {row.label.rpartition(": ")[2] for row in rows} == {"device", "host", "indices"}


def test_every_table_that_misses_names_an_effect(by_name: dict[str, TableCheck]) -> None:
    assert all(check.missing for check in by_name.values())


def test_rows_that_set_nothing_are_predicted_by_their_stack(by_name: dict[str, TableCheck]) -> None:
    odd = {check.name: check for check in check_odd_rows(list(by_name.values()))}
    assert all(judges(row.identifier) for check in odd.values() for row in check.rows)
    for name, error in (("megatron, h100-80gb bf16", 0.06), ("megatron, h100-80gb fp8", 0.08)):
        assert odd[name].median_error <= error
        assert odd[name].rank_correlation >= 0.97


def test_a_source_that_is_left_out_is_predicted_by_the_others() -> None:
    sources = leave_sources_out()
    assert len(sources) == 11
    assert max(source.median_error for source in sources) < 0.09
    assert {source.products for source in sources} <= {1.15, 1.2, 1.21}


def test_more_gpus_are_slower_each_as_published() -> None:
    """From 128 to 512 and 1,024 GPUs, within a model, ranks of a collective cost time."""
    pairs = list_scaling_pairs()
    assert len(pairs) >= 10
    assert all(published > 0 < predicted for published, predicted in pairs)


def test_table_5_needs_no_scale(by_name: dict[str, TableCheck]) -> None:
    """Absolute TFLOP/s, not only their order."""
    for row in by_name["USP table 5"].rows:
        assert row.predicted == pytest.approx(row.published, rel=0.07)
