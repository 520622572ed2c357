"""Output of a comparison on a terminal."""

from comparisons import ODD, pipelined

from seqplan.api.cli.parts.compare_output import comparison_fields, comparison_lines


def test_nearest_rival_comes_first_and_states_its_interval() -> None:
    comparison = pipelined()
    lines = comparison_lines(comparison)
    published, static = (
        system.mean_ms / comparison.ours.mean_ms for system in comparison.systems[1:]
    )
    nearest = f"speed-up over the nearest rival, {ODD}, balanced: {static:.2f}× (no interval: 3"
    of_published = f"speed-up over the best published system, {ODD}: {published:.2f}×"
    assert of_published in lines
    ranges = "ours is faster: by mean iterations; in parentheses the least and most of 3 steps"
    assert lines[lines.index(ranges) - 3].startswith("seqplan  ")
    assert lines[lines.index(of_published) - 1].startswith(nearest)
    fields = comparison_fields(comparison)["nearest_rival"]
    assert fields["speedup"] == round(static, 4)
    assert (fields["interval"], fields["steps"]) == (None, 3)
