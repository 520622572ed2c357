"""Sequence lengths of a data set: read from many kinds of files, summarized and kept.

Read ``read`` first (from paths to lengths), then ``sources`` (a reader for each kind of file),
``summary``, ``histogram``, ``save`` and ``digest``.
"""

from seqplan.costs.lengths.histogram import longest, parse_histogram, representative
from seqplan.costs.lengths.read import SUFFIXES, read_lengths
from seqplan.costs.lengths.save import check_output, save_lengths
from seqplan.costs.lengths.sources.collector import MAX_LENGTH, Lengths, Progress, Source
from seqplan.costs.lengths.sources.error import LengthsError, UncountedText
from seqplan.costs.lengths.sources.options import SourceOptions, parse_tokenizer
from seqplan.costs.lengths.summary import BLOCKS, Bucket, Summary, Tail, histogram_lines, summarise

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
    "UncountedText",
    "check_output",
    "histogram_lines",
    "longest",
    "parse_histogram",
    "parse_tokenizer",
    "read_lengths",
    "representative",
    "save_lengths",
    "summarise",
]
