"""From a plan's sample ids to tokens, and a rank's share of a micro-batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqplan.plans.views.micro_batch_view import MicroBatchView
from seqplan.runtime.errors import DataError

Tokens = npt.NDArray[np.int64]

NO_LABEL = -100
"""The label of a token without a successor: what torch's cross entropy leaves out."""


class TokenData(Protocol):
    """Samples by id, the data set's indices that a plan names."""

    def length(self, id: int) -> int:
        """Return how many tokens sample ``id`` has; ``DataError`` for an id outside the data."""

    def tokens(self, id: int, start: int, stop: int) -> Tokens:
        """Return tokens ``[start, stop)`` of sample ``id``: int64, shape (stop − start,).

        The range lies within the sample's length. ``DataError`` for what cannot be read.
        """


class TokenShare(NamedTuple):
    """A rank's tokens of a micro-batch in the order of its view: int64, shape (local_tokens,).

    ``labels``: the token after each, ``NO_LABEL`` for the last of a sequence; ``positions``: of
    each token in its sequence.
    """

    tokens: Tokens
    labels: Tokens
    positions: Tokens


def load_share(data: TokenData, view: MicroBatchView, *, step: int | None = None) -> TokenShare:
    """Load the tokens that a rank holds of ``view``, their labels and positions.

    Labels are shifted in the whole sequence, before it is cut, so that no label is lost at a cut.
    Reads the rank's ranges and the token after each. A sample with more tokens than
    planned is truncated to the plan's length. ``DataError`` names id, step and lengths if the
    data does not match the plan.
    """
    tokens = np.empty(view.local_tokens, dtype=np.int64)
    labels = np.empty(view.local_tokens, dtype=np.int64)
    at = 0
    for share in view.sequences:
        if not share.ranges:
            continue
        with name_sample(share.id, step):
            length = data.length(share.id)
            if length < share.length:
                raise DataError(
                    f"has {length} tokens, the plan requires {share.length}; plan with the lengths "
                    "of this data"
                )
            for start, stop in share.ranges:
                wanted = min(stop + 1, share.length) - start
                read = data.tokens(share.id, start, start + wanted)
                if len(read) != wanted:
                    raise DataError(
                        f"gave {len(read)} of the {wanted} tokens from {start} on, although it has "
                        f"{length}"
                    )
                end = at + stop - start
                tokens[at:end] = read[: stop - start]
                labels[at : at + len(read) - 1] = read[1:]
                if stop == share.length:
                    labels[end - 1] = NO_LABEL
                at = end
    return TokenShare(tokens, labels, view.positions())


@contextmanager
def name_sample(id: int, step: int | None) -> Iterator[None]:
    """Name the sample, and the step if it is known, in every ``DataError`` within."""
    try:
        yield
    except DataError as error:
        where = f"sample {id}" if step is None else f"sample {id} of step {step}"
        raise DataError(f"{where}: {error}") from None


class IndexedTokens:
    """Samples of anything that is indexed by id: a list, a mapping, a Hugging Face data set.

    ``data[id]`` is a sequence of integers, or, with ``field``, a mapping that holds one there.
    ``TypeError`` for data without samples by id.
    """

    def __init__(self, data: Any, field: str | None = None) -> None:
        if isinstance(data, str | bytes) or not hasattr(data, "__getitem__"):
            raise TypeError(f"data: {data!r:.60}. Give samples by id, such as a list or a data set")
        self._data = data
        self._field = field
        self._last: tuple[int, Tokens] | None = None
        self._last_row: tuple[int, Any] | None = None

    def length(self, id: int) -> int:
        return len(self._sample(id))

    def tokens(self, id: int, start: int, stop: int) -> Tokens:
        return self._sample(id)[start:stop]

    def _row(self, id: int) -> Any:
        # Reading one may mean decoding it, and a share needs its length and two ranges.
        if self._last_row is None or self._last_row[0] != id:
            try:
                self._last_row = id, self._data[id]
            except (IndexError, KeyError):
                raise DataError(f"the data has no such id{_size(self._data)}") from None
        return self._last_row[1]

    def _sample(self, id: int) -> Tokens:
        last = self._last
        if last is not None and last[0] == id:
            return last[1]
        row = self._row(id)
        if self._field is not None:
            if not isinstance(row, Mapping) or self._field not in row:
                raise DataError(f"has no field {self._field!r}{_fields(row)}")
            row = row[self._field]
        elif isinstance(row, Mapping):
            raise DataError(f"is a mapping; name the field of its tokens{_fields(row)}")
        sample = np.asarray(row)
        if sample.size == 0:
            sample = np.empty(0, dtype=np.int64)
        if sample.ndim != 1 or not np.issubdtype(sample.dtype, np.integer):
            raise DataError(
                f"must be a flat list of token ids, not {type(row).__name__} of {sample.dtype} "
                f"in {sample.ndim} dimensions"
            )
        sample = sample.astype(np.int64)
        self._last = (id, sample)
        return sample


class SeededTokens:
    """Tokens made from (seed, id, position) alone: uniform below ``vocab``, the same everywhere.

    Every sample has the requested length. Counter-based (Philox): a range needs no numbers
    before it. ``ValueError`` if ``vocab`` < 1 or ``seed`` is not in 0 … 2⁶⁴ − 1.
    """

    def __init__(self, vocab: int, seed: int) -> None:
        if vocab < 1:
            raise ValueError(f"vocab must be positive, not {vocab}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be in 0 … 2**64 − 1, not {seed}")
        self._vocab = vocab
        self._seed = seed

    def length(self, id: int) -> int:
        return sys.maxsize

    def tokens(self, id: int, start: int, stop: int) -> Tokens:
        first, skipped = divmod(start, _PHILOX_WORDS)
        key = np.array([self._seed, id], dtype=np.uint64)
        drawn = np.random.Philox(key=key, counter=first).random_raw(skipped + stop - start)
        return (drawn[skipped:] % np.uint64(self._vocab)).astype(np.int64)


_PHILOX_WORDS = 4
"""Numbers of 64 bits that one value of Philox' counter gives."""


def _size(data: Any) -> str:
    return f", it has {len(data)} samples" if hasattr(data, "__len__") else ""


def _fields(row: Any) -> str:
    return f" (there are {', '.join(map(str, row))})" if isinstance(row, Mapping) else ""
