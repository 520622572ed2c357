"""The report: well-formed, self-contained, escaped, complete, the same each time, small."""

import random
import re
from dataclasses import replace
from importlib.resources import files

import pytest
from comparisons import ODD, Page, charts, comparison_of, in_lockstep, iteration, pipelined

from seqplan.api.cli.parts.compare_output import comparison_fields, comparison_lines
from seqplan.api.report import render
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.comparison.results import Comparison, System
from seqplan.planner.comparison.sweep import Sweep, SweptPoint, SweptSystem
from seqplan.planner.simulation.iteration import ModeUse
from seqplan.plans.scheme import Scheme

COMPARISONS = pytest.mark.parametrize(
    "compared", [pipelined(), in_lockstep()], ids=["pipelined", "micro-steps"]
)

PROFILE = load_shipped("llama-7b-a800-80gb").restrict(measured=True)


@COMPARISONS
@pytest.mark.parametrize("profile", [None, PROFILE], ids=["bare", "profiled"])
def test_every_element_closes(compared: Comparison, profile: None) -> None:
    page = Page.of(render(compared, profile))
    assert page.faults == []
    idents = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(idents) == len(set(idents))
    for _, attributes in page.tags:
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in idents
        if (link := attributes.get("href")) is not None:
            assert link[0] == "#"
            assert link[1:] in idents


@COMPARISONS
def test_nothing_is_fetched(compared: Comparison) -> None:
    document = render(compared, PROFILE)
    assert re.findall(r"(\S*)://", document) == ["https"]  # the home of uPlot, in its script
    assert "@import" not in document
    assert re.findall(r"url\((?!#)", document) == []
    tags = {tag for tag, _ in Page.of(document).tags}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base"}
    assert not [1 for _, attributes in Page.of(document).tags if "src" in attributes]


def test_text_is_escaped() -> None:
    document = render(pipelined())
    page = Page.of(document)
    assert "<script>alert" not in document
    assert ODD not in document  # not in the descriptions of charts either
    assert ODD in page.words
    assert "A window & a <script>alert(1)</script>." in page.words


def test_invalid_characters_are_replaced() -> None:
    document = render(replace(pipelined(), advice="a\x00b\ud800c\x1b[31m"))
    assert "a\ufffdb\ufffdc\ufffd[31m" in document
    assert document.encode()


@COMPARISONS
def test_the_same_comparison_gives_the_same_bytes(compared: Comparison) -> None:
    assert render(compared, PROFILE) == render(compared, PROFILE)


def test_utilization_is_of_all_flops_over_all_time() -> None:
    """Not the mean of the steps' rates, in which a short step would count as much as a long one."""
    first, second = in_lockstep().ours.iterations
    steps = (
        replace(first, compute_ms=47.25, mfu=0.5),  # 100 ms in all
        replace(second, compute_ms=247.25, mfu=0.1),  # 300 ms in all
    )
    known = System("ours", "seqplan", "Micro-steps.", True, steps)
    unknown = System("sp", "Static SP", "One degree.", False, (first, replace(second, mfu=0.1)))
    compared = comparison_of(known, unknown, gpus=4)
    made_of = Page.of(render(compared)).table("System", "Forward and backward (ms)")
    assert {row[0]: row[-1] for row in made_of} == {"seqplan": "20.0 %", "Static SP": "—"}
    printed = [line.split()[-2:] for line in comparison_lines(compared)[4:6]]
    assert printed == [["20.0", "%"], [printed[1][0], "—"]]
    assert [system["mfu"] for system in comparison_fields(compared)["systems"]] == [0.2, None]


@COMPARISONS
def test_every_iteration_is_in_a_table(compared: Comparison) -> None:
    rows = Page.of(render(compared)).table("System", "Step")
    expected = [
        [
            system.name,
            f"{step.step}",
            *(f"{value:,.1f}" for value in (step.total_ms, step.compute_ms)),
            *(f"{value:,.1f}" for value in (step.sync_ms, step.optimizer_ms)),
            f"{step.tokens_per_s:,.0f}",
            f"{gain:,.2f}×",
            f"{100 * step.bubble_ratio:.1f} %",
            f"{step.imbalance:,.3f}",
            "—" if step.mfu is None else "37.1 %",
        ]
        for system in compared.systems
        for step, gain in zip(system.iterations, compared.speedups(system), strict=True)
    ]
    assert rows == expected


def test_every_number_of_the_steps_is_in_a_table() -> None:
    compared = pipelined()
    page = Page.of(render(compared, PROFILE))
    cells = {cell for table in page.tables for row in table for cell in row}
    for step in compared.ours.iterations:
        assert {f"{step.tokens:,}", f"{step.longest:,}", f"{step.sequences:,}"} <= cells
        assert {step.strategy, "1.230 %", f"{step.planning_ms:,.1f}"} <= cells
    for up_to, sequences, tokens in compared.histogram:
        assert {f"{up_to:,}", f"{sequences:,}", f"{tokens:,}"} <= cells
    for model in PROFILE.usable(16, 32_768):
        assert {str(model.scheme), f"{model.max_len:,}", f"{model.a:.4g}"} <= cells
    at = max(range(3), key=lambda k: compared.ours.iterations[k].total_ms)
    for system in (compared.ours, compared.systems[2]):  # ours and the nearest rival
        assert {f"{busy:,.1f}" for busy in system.iterations[at].rank_busy_ms} <= cells
        assert f"{system.mean_ms:,.1f}" in cells


def test_recomputation_modes_of_our_plans_are_in_a_table() -> None:
    compared = pipelined()
    assert "Recomputation by micro-batch" not in render(compared)
    first, *others = compared.ours.iterations
    moded = replace(
        first, modes=(ModeUse("elementwise", 30, 1000, 60.0), ModeUse("full", 10, 3000, 140.0))
    )
    again = replace(first, modes=(ModeUse("full", 2, 1000, 200.0),))
    ours = replace(compared.ours, iterations=(moded, again, *others[1:]))
    systems = tuple(ours if system is compared.ours else system for system in compared.systems)
    page = Page.of(render(replace(compared, systems=systems)))
    rows = [row for table in page.tables for row in table]
    assert ["elementwise", "30", "20.0 %", "15.0 %"] in rows
    assert ["full", "12", "80.0 %", "85.0 %"] in rows


def test_the_headline_is_the_nearest_rival() -> None:
    compared = pipelined()
    words = Page.of(render(compared)).words
    published, static = compared.systems[1:]
    for role, system in (("the nearest rival", static), ("the best published system", published)):
        at = words.index(f"Speed-up over {role}")
        assert words[at + 1] == f"{system.mean_ms / compared.ours.mean_ms:,.2f}×"
        assert words[at + 2].startswith(f"{system.name}; ")
    at = words.index("Speed-up over the nearest rival")
    assert words[at + 2].endswith("no interval: 3 steps; 16 or more give one")
    # The charts of single steps are of it, and name it.
    assert f"Our slowest step (1): {ODD}, balanced" in words
    assert f"Our slowest step (1): {ODD}" not in words
    assert sum(f"{ODD}, balanced, the nearest rival" in line for line in words) == 2
    # One that is the nearest too has one card only.
    words = Page.of(render(replace(compared, systems=(compared.ours, published)))).words
    assert "Speed-up over the nearest rival" in words
    assert "Speed-up over the best published system" not in words
    assert f"Our slowest step (1): {ODD}" in words


def test_a_curve_ends_at_the_longest_sequence_of_its_scheme() -> None:
    profile = load_shipped("llama-32b-a800-80gb").restrict(measured=True)
    models = profile.usable(64, 32_768)
    (chart,) = [
        chart
        for chart in charts(render(replace(pipelined(), gpus=64), profile))
        if chart["up"]["label"] == "GPU-ms per token"
    ]
    assert [curve["name"] for curve in chart["series"]] == [str(m.scheme) for m in models]
    places = chart["places"]
    for curve, model in zip(chart["series"], models, strict=True):
        last = max(at for at, value in enumerate(curve["values"]) if value is not None)
        longest = min(model.max_len, 32_768)  # tp16 holds 43,614 tokens
        assert places[last] == longest
        assert None not in curve["values"][:last]
        time_ms = (model.a * longest + model.b) * longest + model.c
        gpus = model.scheme.stage_gpus * model.scheme.pp
        assert curve["values"][last] == pytest.approx(time_ms * gpus / longest, rel=1e-5)
        assert [places[at] for at in curve["marks"]] == [model.util_len, longest]


@pytest.mark.parametrize("limit", [64, 1_000])
def test_no_point_where_the_least_useful_length_is_out_of_sight(limit: int) -> None:
    profile = load_shipped("llama-32b-a800-80gb").restrict(measured=True)
    models = profile.usable(64, limit)
    document = render(replace(pipelined(), gpus=64, max_len=limit), profile)
    (chart,) = [one for one in charts(document) if one["up"]["label"] == "GPU-ms per token"]
    places = chart["places"]
    for curve, model in zip(chart["series"], models, strict=True):
        lengths = [model.util_len] if model.util_len < limit else []
        assert [places[at] for at in curve["marks"]] == [*lengths, limit]


def test_no_chart_of_nearly_equal_bars() -> None:
    assert "Longest sequence of each step" not in Page.of(render(pipelined())).words


@COMPARISONS
def test_every_figure_states_its_origin(compared: Comparison) -> None:
    page = Page.of(render(compared))
    figures = sum(tag == "figure" for tag, _ in page.tags)
    captions = sum(tag == "figcaption" for tag, _ in page.tags)
    assert captions == figures > 8
    assert "Simulated on profile made-profile<1>." in " ".join(page.words)
    # Drawings are named for those who cannot see them.
    assert all(chart["about"].endswith(".") for chart in charts(render(compared, PROFILE)))
    gantts = [attributes for tag, attributes in page.tags if "viewbox" in attributes]
    assert gantts
    assert all(gantt["role"] == "img" and gantt["aria-label"] for gantt in gantts)


def test_ours_alone_is_a_report() -> None:
    compared = replace(pipelined(), systems=pipelined().systems[:1], left_out=(), assumptions=())
    assert Page.of(render(compared)).faults == []


def test_missing_records_are_stated() -> None:
    compared = pipelined()
    bare = [replace(i, spans=(), gap=None, planning_ms=None) for i in compared.ours.iterations]
    ours = replace(compared.ours, iterations=tuple(bare))
    page = Page.of(render(replace(compared, systems=(ours, *compared.systems[1:]))))
    assert page.faults == []
    assert {"Not recorded.", "Neither was recorded."} <= set(page.words)


def test_unequal_steps_are_rejected() -> None:
    compared = pipelined()
    short = replace(compared.systems[1], iterations=compared.systems[1].iterations[:2])
    with pytest.raises(ValueError, match="has 2 steps, but ours has 3"):
        render(replace(compared, systems=(compared.ours, short)))
    with pytest.raises(ValueError, match="nothing to report"):
        render(replace(compared, systems=()))


def large(gpus: int, steps: int, systems: int) -> Comparison:
    """Unequal micro-batches on many pipelines with stages."""
    draw = random.Random(3)
    deep = Scheme(tp=2, pp=4)

    def system_of(number: int) -> System:
        items = []
        # Two different iterations in turn: the report looks into one at a time.
        for step in range(2):
            pipelines = [
                (deep, [draw.uniform(20, 400) for _ in range(12)]) for _ in range(gpus // 8)
            ]
            items.append(iteration(step, pipelines, number == 0))
        items = [replace(items[step % 2], step=step) for step in range(steps)]
        return System(f"s{number}", f"System {number}", "Made.", False, tuple(items))

    return comparison_of(*map(system_of, range(systems)), gpus=gpus)


def test_a_large_comparison_stays_small() -> None:
    document = render(large(1024, 20, 8), PROFILE)
    assert len(document.encode()) < 2_000_000
    page = Page.of(document)
    assert page.faults == []
    # Stages share rows if there are more than can be seen.
    assert "stages share a row" in document
    assert len(page.table("Ranks")) <= 201


def test_a_sweep_has_a_figure_and_every_number_in_a_table() -> None:
    def swept(key: str, mean_ms: float) -> SweptSystem:
        return SweptSystem(key, f"<{key}>", mean_ms, mean_ms - 50, 1e6 / mean_ms, mean_ms / 1000)

    systems = [swept("ours", 1000.0), swept("a", 1525.4), swept("b", 913.6)]
    points = (
        SweptPoint(16, 50_000, tuple(systems), ()),
        SweptPoint(32, 100_000, (systems[0], systems[2]), (("A & co", "no room"),)),
        SweptPoint(64, 0, (), (), "too few <GPUs>"),
    )
    document = render(pipelined(), PROFILE, [Sweep("gpus", points), Sweep("tokens", points[2:])])
    page = Page.of(document)
    assert page.faults == []
    assert ("a", {"href": "#sweeps"}) in page.tags
    rows = page.table("System", "Number of GPUs")
    assert rows[1] == ["<a>", "16", "50,000", "656", "1,525.4", "1,475.4", "1.53×"]
    assert len(rows) == 5
    assert {"64: not possible: too few <GPUs>", "32: left out: A & co: no room"} <= set(page.words)
    # One picture, as no number of tokens was possible: that has reasons only.
    (chart,) = [chart for chart in charts(document) if chart["up"]["label"] == "speed-up of ours"]
    assert chart["across"]["names"] == ["16", "32"]
    values = {line["name"]: line["values"] for line in chart["series"]}
    assert values == {"<a>": [1.5254, None], "<b>": [0.9136, 0.9136], "ours": [1.0, 1.0]}
    assert "#sweeps" not in render(pipelined(), PROFILE)


def test_paper_gets_no_patterns() -> None:
    """A browser writes a pattern into a PDF once for every shape that it fills."""
    style = (files("seqplan.api.report.drawing") / "page.css").read_text("utf-8")
    screen, _, paper = style.partition("@media print")
    patterned = re.findall(r"(\.[a-z]+)\{fill:url\(", screen)
    assert patterned
    for name in patterned:
        assert re.search(rf"{re.escape(name)}\{{fill:(#|var)", paper)
