"""``seqplan lengths``: read the sequence lengths of a data set, describe and keep them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from functools import partial
from glob import glob
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from seqplan.api.cli.framework.options import add_option, add_tokenizer
from seqplan.api.cli.framework.output import RedrawnLine, count_of
from seqplan.api.cli.framework.output import check_output as check_apart
from seqplan.costs.lengths import (
    BLOCKS,
    Lengths,
    SourceOptions,
    Summary,
    check_output,
    histogram_lines,
    read_lengths,
    save_lengths,
    summarise,
)
from seqplan.plans.percent import percent

DESCRIPTION = """\
Read the length, in tokens, of every sequence of a data set; describe the lengths and keep them.

A source is .npy (integers), .txt (one integer a line), .json, .jsonl or .jsonl.gz, .parquet or
.arrow (an integer, a list of ids, a text or a conversation in each record), .csv or .tsv (an
integer or a text, under names of columns), a Megatron .idx (its documents), a folder of text
files, or a quoted pattern such as 'shards/*.idx'. Several sources are joined in order.
Conversations are messages or conversations (ShareGPT), a prompt or instruction (Alpaca) and its
response, or chosen and rejected ones, of which each is a sequence. A field image_grid_thw or
video_grid_thw has the patches of each frame.
"""

EXAMPLES = """\
examples:
  seqplan lengths corpus.idx -o lengths.npy
  seqplan lengths part-*.jsonl.gz --field text --tokenizer tokenizer.json -o lengths.npy
  seqplan lengths chat.jsonl --tokenizer Qwen3-8B/ -o lengths.npy
  seqplan lengths images.parquet --field image_grid_thw
  seqplan lengths docs/ --glob '*.md' --tokenizer 4
"""


_MOST_LISTED = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = partial(add_option, parser)
    add("sources", metavar="SOURCE", nargs="+", help="file, folder or pattern")
    add(
        "--field F",
        help="field or column to read; without it the first of length, num_tokens, input_ids, "
        "tokens, ids, then those of a conversation, then text",
    )
    add_tokenizer(parser)
    add("--glob PATTERN", help="read only these files of a folder of texts")
    add("-o --output FILE.npy", help="keep the lengths in this file")
    add("--json", help="describe them as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command. ``LengthsError`` on bad input, ``OSError`` if the output is not writable."""
    options = SourceOptions(field=args.field, tokenizer=args.tokenizer, glob=args.glob)
    if args.output is not None:
        check_output(args.output)
        check_apart(args.output, *args.sources, *chain.from_iterable(map(glob, args.sources)))
    with _ProgressLine(sys.stderr) as progress:
        lengths = read_lengths(args.sources, options, progress)
    summary = summarise(lengths.values)
    if args.output is not None:
        save_lengths(args.output, lengths.values)
    if args.json:
        print(json.dumps(_as_json(lengths, summary, args.output)))
    else:
        print("\n".join(_as_text(lengths, summary, args.output)))
    return 0


def _as_json(lengths: Lengths, summary: Summary, output: Path | None) -> dict[str, Any]:
    return {
        **asdict(summary),
        "sources": [asdict(source) for source in lengths.sources],
        "output": None if output is None else str(output),
    }


def _as_text(lengths: Lengths, summary: Summary, output: Path | None) -> list[str]:
    lines = _source_lines(lengths)
    if len(lengths.sources) > 1:
        lines.append(
            f"{len(lengths.sources):,} sources: {count_of(summary.sequences, 'sequence')}, "
            f"{count_of(summary.tokens, 'token')}"
        )
    lines.append(
        f"length: mean {summary.mean:,.1f}, median {summary.median:,.0f}, p90 {summary.p90:,.0f}, "
        f"p99 {summary.p99:,.0f}, max {summary.max:,}"
    )
    lines += ["", *histogram_lines(summary, blocks=_blocks(sys.stdout)), ""]
    lines += [
        f"over {tail.over:,}: {count_of(tail.sequences, 'sequence')}, "
        f"{percent(tail.token_share)} of the tokens"
        for tail in summary.tails
    ]
    if output is not None:
        lines.append(f"written: {output}")
    elif not lines[-1]:
        lines.pop()
    return lines


def _source_lines(lengths: Lengths) -> list[str]:
    """Return a line for each source or, for many shards, only their notes."""
    if len(lengths.sources) > _MOST_LISTED:
        return list(dict.fromkeys(note for source in lengths.sources for note in source.notes))
    lines = []
    for source in lengths.sources:
        notes = f" ({'; '.join(source.notes)})" if source.notes else ""
        counts = f"{count_of(source.sequences, 'sequence')}, {count_of(source.tokens, 'token')}"
        lines.append(f"{source.path}: {counts}{notes}")
    return lines


def _blocks(out: TextIO) -> str:
    """Block characters, or ``#`` if the terminal's encoding has none."""
    try:
        BLOCKS.encode(out.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return BLOCKS


class _ProgressLine(RedrawnLine):
    """Progress of reading: one line of a terminal, or log lines at intervals."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._every_s = 0.1 if self._terminal else 10.0
        # The first word comes after a while: most sources are read before there is a need.
        self._next = time.monotonic() + (0.5 if self._terminal else self._every_s)

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            self.show(f"{done:,} of {total:,} sequences" if total else f"{done:,} sequences")
