"""Sequence lengths of a data set: read from many kinds of files, summarised and kept.

Read ``read`` first (from paths to lengths), then ``sources`` (a reader for each kind of file),
``summary``, ``histogram``, ``save`` and ``digest``. Public are the names below.
"""

from seqplan.profiler.lengths.histogram import longest, parse_histogram, representative
from seqplan.profiler.lengths.read import SUFFIXES, read_lengths
from seqplan.profiler.lengths.save import check_output, save_lengths
from seqplan.profiler.lengths.sources.collector import MAX_LENGTH, Lengths, Progress, Source
from seqplan.profiler.lengths.sources.error import LengthsError
from seqplan.profiler.lengths.sources.options import SourceOptions
from seqplan.profiler.lengths.summary import (
    BLOCKS,
    Bucket,
    Summary,
    Tail,
    histogram_lines,
    summarise,
)

__all__ = [
    "BLOCKS",
    "MAX_LENGTH",
    "SUFFIXES",
    "Bucket",
    "Lengths",
    "LengthsError",
    "Progress",
    "Source",
    "SourceOptions",
    "Summary",
    "Tail",
    "check_output",
    "histogram_lines",
    "longest",
    "parse_histogram",
    "read_lengths",
    "representative",
    "save_lengths",
    "summarise",
]
