"""Statistics of lengths, their histogram, and the command that shows them."""

import argparse
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.api.cli import lengths as lengths_command
from seqplan.costs.lengths import MAX_LENGTH, LengthsError, histogram_lines, read_lengths, summarise


@given(st.lists(st.integers(1, MAX_LENGTH) | st.integers(1, 40), min_size=1, max_size=60))
def test_a_summary_agrees_with_the_plain_definitions(lengths: list[int]) -> None:
    summary = summarise(np.array(lengths), limits=(1000, 10))
    assert (summary.sequences, summary.tokens) == (len(lengths), sum(lengths))
    assert summary.max == max(lengths)
    assert summary.mean == pytest.approx(sum(lengths) / len(lengths))
    assert summary.median == pytest.approx(float(np.median(lengths)))
    for bucket in summary.buckets:
        members = [n for n in lengths if bucket.over < n <= bucket.up_to]
        assert (bucket.sequences, bucket.tokens) == (len(members), sum(members))
    assert sum(bucket.sequences for bucket in summary.buckets) == len(lengths)
    for tail in summary.tails:
        longer = [n for n in lengths if n > tail.over]
        assert tail.sequences == len(longer) > 0
        assert tail.token_share == pytest.approx(sum(longer) / sum(lengths))
    assert [tail.over for tail in summary.tails] == [n for n in (10, 1000) if max(lengths) > n]
    lines = histogram_lines(summary, width=90)
    assert len(lines) == 1 + len(summary.buckets)
    assert max(map(len, lines)) <= 90


@pytest.mark.parametrize("dtype", ["uint32", "int64", "int16"])
def test_powers_of_two_end_their_bucket(dtype: str) -> None:
    summary = summarise(np.array([1, 2, 3, 4, 5, 8, 9], dtype))
    assert [(b.over, b.up_to, b.sequences) for b in summary.buckets] == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 4, 2),
        (4, 8, 2),
        (8, 16, 1),
    ]


def test_percentiles_have_no_errors_of_rounding() -> None:
    """As of 0.9 · 7 + 0.1 · 7, which is 7.000000000000001 in floating point."""
    for last in range(1000):
        summary = summarise(np.array([3, 80, last + 1]))
        assert len(str(summary.p90)) <= len("000.00"), summary


def test_no_lengths_have_no_summary() -> None:
    with pytest.raises(ValueError, match="no lengths"):
        summarise(np.array([], np.int64))


def test_histogram_text() -> None:
    summary = summarise(np.array([100] * 6 + [300] + [1000] * 3))
    assert histogram_lines(summary, width=70) == [
        "up to  sequences  share                      tokens in them",
        "  128          6   60.0 % █████████████▎      15.4 % ███▍",
        "  256          0    0.0 %                      0.0 %",
        "  512          1   10.0 % ██▎                  7.7 % █▊",
        "1,024          3   30.0 % ██████▋             76.9 % █████████████████",
    ]
    assert histogram_lines(summary, width=70, blocks="#")[1].count("#") == 16


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    lengths_command.add_options(parser)
    return lengths_command.run(parser.parse_args(arguments))


def test_the_command_describes_and_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("100\n3000\n")
    (tmp_path / "b.jsonl").write_text('{"length": 70}\n')
    output = tmp_path / "out.npy"
    assert run(str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl"), "-o", str(output)) == 0
    shown, log = capsys.readouterr()
    assert log == ""
    lines = shown.splitlines()
    assert lines[0].endswith("a.txt: 2 sequences, 3,100 tokens")
    assert lines[1].endswith("b.jsonl: 1 sequence, 70 tokens (an integer in field 'length')")
    assert lines[2] == "2 sources: 3 sequences, 3,170 tokens"
    assert lines[3] == "length: mean 1,056.7, median 100, p90 2,420, p99 2,942, max 3,000"
    assert lines[-2] == "over 2,048: 1 sequence, 94.6 % of the tokens"
    assert lines[-1] == f"written: {output}"
    assert read_lengths([output]).values.tolist() == [100, 3000, 70]


def test_many_sources_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(12):
        (tmp_path / f"{n:02}.jsonl").write_text('{"length": 70}\n')
    assert run(str(tmp_path / "*.jsonl")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["an integer in field 'length'", "12 sources: 12 sequences, 840 tokens"]


def test_the_command_speaks_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "abcd"}\n')
    assert run(str(tmp_path / "a.jsonl"), "--tokenizer", "2", "--json") == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed == {
        "sequences": 1,
        "tokens": 2,
        "mean": 2.0,
        "median": 2.0,
        "p90": 2.0,
        "p99": 2.0,
        "max": 2,
        "buckets": [{"over": 1, "up_to": 2, "sequences": 1, "tokens": 2}],
        "tails": [],
        "sources": [
            {
                "path": str(tmp_path / "a.jsonl"),
                "sequences": 1,
                "tokens": 2,
                "notes": ["a text in field 'text'", "estimated from bytes at 2 bytes per token"],
                "loss_tokens": None,
            }
        ],
        "output": None,
    }


def test_a_bad_output_is_rejected_before_reading(tmp_path: Path) -> None:
    with pytest.raises(LengthsError, match=r"written as \.npy"):
        run("missing.txt", "-o", str(tmp_path / "a.txt"))


def test_an_ascii_terminal_gets_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("100\n")
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert run(str(tmp_path / "a.txt")) == 0
    out.flush()
    assert b"###" in raw.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    with lengths_command._ProgressLine(out) as progress:
        progress(1, None)
        now = 11.0
        progress(1000, None)
        progress(1001, None)
        now = 22.0
        progress(2000, 3000)
    assert out.getvalue() == (
        "\r\x1b[K1,000 sequences\r\x1b[K2,000 of 3,000 sequences\r\x1b[K"
        if terminal
        else "1,000 sequences\n2,000 of 3,000 sequences\n"
    )
