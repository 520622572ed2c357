"""Targets of a sample: labels, their weights, and other inputs of a loss for every token.

Everything is aligned with the tokens: entry i belongs to token i, as its prediction target. A
rank gets it shifted, as labels are: next to the token that predicts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from seqplan.plans.views.micro_batch_view import MicroBatchView
from seqplan.runtime.data.tokens import NO_LABEL, IndexedTokens, TokenData, Tokens, name_sample
from seqplan.runtime.errors import DataError

Weights = npt.NDArray[np.float64]
Extras = Mapping[str, npt.NDArray[Any]]


class Targets(NamedTuple):
    """Labels, weights and extras of a range of a sample's tokens.

    ``labels``: int64 (tokens,), ``NO_LABEL`` to ignore a token; ``weights``: float64
    (tokens,), how much each label counts, 1 if None; ``extras``: by name, (tokens, …).
    """

    labels: Tokens
    weights: Weights | None = None
    extras: Extras = MappingProxyType({})


@runtime_checkable
class TargetData(TokenData, Protocol):
    """Samples with labels, weights or per-token columns."""

    def targets(self, id: int, start: int, stop: int) -> Targets:
        """Return what tokens ``[start, stop)`` of sample ``id`` teach, which may be none of them.

        Names, dtypes and further dimensions of the extras are those of every sample, and whether
        there are weights.
        """


class TargetShare(NamedTuple):
    """A rank's targets of a micro-batch, shifted: row i has what follows the rank's token i.

    ``labels`` as of ``TokenShare``, ``weights`` float64 (local_tokens,), 0 without a label;
    ``extras``: (local_tokens, …), 0 at the end of a sequence.
    """

    labels: Tokens
    weights: Weights
    extras: dict[str, npt.NDArray[Any]]


def load_targets(data: TargetData, view: MicroBatchView, *, step: int | None = None) -> TargetShare:
    """Load what the rank's tokens of ``view`` are to predict.

    Shifted in the whole sequence, before it is cut. ``DataError`` names id and step where labels,
    weights or extras are fewer or more than the tokens, weights negative or no numbers.
    """
    rows = view.local_tokens
    labels = np.full(rows, NO_LABEL, dtype=np.int64)
    weights = np.ones(rows)
    extras: dict[str, npt.NDArray[Any]] | None = None
    at = 0
    for share in view.sequences:
        # Without a token here one still learns what extras there are.
        ranges = share.ranges or (((-1, -1),) if extras is None else ())
        for start, stop in ranges:
            first, last = start + 1, min(stop + 1, share.length)
            with name_sample(share.id, step):
                targets = _check(data.targets(share.id, first, last), last - first)
                if extras is None:
                    extras = {
                        name: np.zeros((rows, *values.shape[1:]), values.dtype)
                        for name, values in targets.extras.items()
                    }
                _check_equal_extras(targets.extras, extras)
            # The end of a sequence predicts nothing: its row stays without a label.
            end = at + last - first
            labels[at:end] = targets.labels
            if targets.weights is not None:
                weights[at:end] = targets.weights
            for name, values in targets.extras.items():
                extras[name][at:end] = values
            at += stop - start
    weights[labels == NO_LABEL] = 0.0
    return TargetShare(labels, weights, extras or {})


def _check(targets: Targets, wanted: int) -> Targets:
    for name, values in (
        ("labels", targets.labels),
        ("weights", targets.weights),
        *targets.extras.items(),
    ):
        if values is not None and len(values) != wanted:
            raise DataError(f"gave {len(values)} {name} for {wanted} tokens")
    weights = targets.weights
    if weights is not None:
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        if wrong.any():
            raise DataError(f"a weight is {weights[wrong][0]}: weights are numbers of 0 or more")
    return targets


def _check_equal_extras(extras: Extras, before: Extras) -> None:
    if _kinds(extras) != _kinds(before):
        raise DataError(
            f"has the extras {_kinds(extras)}, samples before it {_kinds(before)}: every sample "
            "must have the same"
        )


def _kinds(extras: Extras) -> str:
    kinds = (f"{name}: {v.dtype} {('tokens', *v.shape[1:])}" for name, v in extras.items())
    return ", ".join(sorted(kinds)) or "none"


class IndexedTargets(IndexedTokens):
    """As ``IndexedTokens`` for rows with columns: a list of mappings, a Hugging Face data set.

    ``field``: the tokens' column; ``labels``: the labels' column, or the tokens if None;
    ``mask``: of 0 and 1, 0 if the label does not count; ``weights``: how much it counts;
    ``extras``: other inputs of the loss. A column has an entry for each token, or is one
    number, which is then every token's. ``DataError`` names the sample's column that is wrong.
    """

    def __init__(
        self,
        data: Any,
        field: str,
        *,
        labels: str | None = None,
        mask: str | None = None,
        weights: str | None = None,
        extras: Sequence[str] = (),
    ) -> None:
        super().__init__(data, field)
        self._labels, self._mask, self._weights = labels, mask, weights
        self._extras = tuple(extras)
        self._whole: tuple[int, Targets] | None = None

    def targets(self, id: int, start: int, stop: int) -> Targets:
        if self._whole is None or self._whole[0] != id:
            self._whole = id, self._targets(id)
        labels, weights, extras = self._whole[1]
        part = slice(start, stop)
        return Targets(
            labels[part],
            None if weights is None else weights[part],
            {name: values[part] for name, values in extras.items()},
        )

    def _targets(self, id: int) -> Targets:
        tokens, row = self._sample(id), self._row(id)
        labels = tokens
        if self._labels is not None:
            labels = _column(row, self._labels, len(tokens))
            if not np.issubdtype(labels.dtype, np.integer):
                raise DataError(f"column {self._labels!r} must be integers, not {labels.dtype}")
        if self._mask is not None:
            counts = _column(row, self._mask, len(tokens))
            if not np.isin(counts, (0, 1)).all():
                raise DataError(f"column {self._mask!r} must be 0 and 1 only")
            labels = np.where(counts.astype(bool), labels, NO_LABEL)
        weights = None
        if self._weights is not None:
            weights = _column(row, self._weights, len(tokens)).astype(np.float64)
        extras = {name: _column(row, name, len(tokens)) for name in self._extras}
        return Targets(labels.astype(np.int64), weights, extras)


def _column(row: Mapping[str, Any], name: str, tokens: int) -> npt.NDArray[Any]:
    """Return a column's values of every token."""
    if name not in row:
        raise DataError(f"has no column {name!r} (there are {', '.join(map(str, row))})")
    value = row[name]
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value  # numpy has no bf16
    values = np.asarray(value)
    if values.dtype.kind not in "iufb":
        raise DataError(f"column {name!r} must be numbers, not {values.dtype}")
    if values.ndim == 0:
        return np.full(tokens, values)
    if len(values) != tokens:
        raise DataError(f"column {name!r} has {len(values)} entries for {tokens} tokens")
    return values
