"""What a comparison says on a terminal."""

from __future__ import annotations

from comparisons import ODD, pipelined

from seqplan.api.cli.verb_parts.compare_output import comparison_lines


def test_the_lines_name_both_systems_that_count() -> None:
    comparison = pipelined()
    lines = comparison_lines(comparison)
    published, static = (
        system.mean_ms / comparison.ours.mean_ms for system in comparison.systems[1:]
    )
    assert f"speed-up over the best published system: {published:.2f}× ({ODD})" in lines
    line = f"the best static strategy with our balancing: {static:.2f}× ({ODD}, balanced)"
    assert f"speed-up over {line}" in lines
