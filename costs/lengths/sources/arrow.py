"""Lengths from a column of a ``.parquet`` or ``.arrow`` file (the ``arrow`` extra)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.costs.lengths.sources.chat import read_chats
from seqplan.costs.lengths.sources.collector import Collector, number_places
from seqplan.costs.lengths.sources.conversations import Layout
from seqplan.costs.lengths.sources.error import LengthsError, first_line
from seqplan.costs.lengths.sources.grids import is_grid_field, read_grids
from seqplan.costs.lengths.sources.options import check_list_of_ids, choose_field
from seqplan.costs.lengths.sources.token_count import TextBatch, TokenCounter

ROWS = 1 << 16
ROWS_OF_IDS = 1 << 10
"""Rows decoded at once where a row may hold a whole sequence."""


def read_arrow(path: Path, wanted: str | None, counter: TokenCounter, out: Collector) -> None:
    """Read one sequence a row: an integer, a list of ids or a text.

    Rows with conversations are rendered and counted. A column of grids (``image_grid_thw``) has a
    sequence for each frame.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise LengthsError(
            f"{path}: reading {path.suffix} needs the pyarrow package: pip install 'seqplan[arrow]'"
        ) from None
    try:
        _read(path, wanted, counter, out)
    except (pa.ArrowException, EOFError, UnicodeDecodeError) as error:
        raise LengthsError(
            f"{path}: is not a whole {path.suffix} file: {first_line(error)}"
            ". Write or download it again"
        ) from None
    except OSError as error:
        # Arrow reports damage inside a file as an OSError without a number.
        if error.errno is not None:
            raise
        raise LengthsError(
            f"{path}: is not a whole {path.suffix} file: {first_line(error)}"
            ". Write or download it again"
        ) from None


def _read(path: Path, wanted: str | None, counter: TokenCounter, out: Collector) -> None:
    import pyarrow as pa

    parquet = path.suffix.lower() == ".parquet"
    with pa.memory_map(str(path)) as mapped:
        table = _parquet(mapped) if parquet else _ipc(mapped)
        names = table.schema.names
        field = choose_field(names, wanted, f"{path}: schema")
        if isinstance(field, str) and _holds_messages(table.schema.field(field).type):
            field = Layout(chat=field)
        fields = field.list_fields(names) if isinstance(field, Layout) else [field]
        for name in fields:
            if names.count(name) > 1:
                raise LengthsError(f"{path}: schema: field {name!r} is there twice; rename one")
        if isinstance(field, Layout):
            chats = counter.require_chats(f"{path}: schema")
            read_chats(_records(path, table, fields), field, names, chats, out)
            return
        if is_grid_field(field):
            read_grids(_rows(path, table, field), field, out)
            return
        kind = _kind(table.schema.field(field).type, f"{path}: field {field!r}")
        if kind == "a list of ids":
            check_list_of_ids(field, str(path))
        if wanted is None:
            out.note(f"{kind} in field {field!r}")
        if kind == "a text":
            counter.require(f"{path}: field {field!r}")
            out.note(counter.note)
        if table.rows is not None:
            out.expect(table.rows)
        rows_read = 0
        for (column,) in table.columns([field], ROWS if kind == "an integer" else ROWS_OF_IDS):
            place = number_places(f"{path}: row", rows_read)
            if kind == "a text":
                _count(_whole(column, place), counter, place, out)
            else:
                out.add(_integers(_whole(column, place), kind), place)
            rows_read += len(column)


class _Table:
    """A file's schema, its number of rows if stated, and columns of it in parts."""

    def __init__(
        self,
        schema: Any,
        rows: int | None,
        columns: Callable[[list[str], int], Iterator[list[Any]]],
    ) -> None:
        self.schema = schema
        self.rows = rows
        self.columns = columns


def _parquet(mapped: Any) -> _Table:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(mapped)

    def columns(fields: list[str], rows: int) -> Iterator[list[Any]]:
        for batch in file.iter_batches(batch_size=rows, columns=fields):
            yield [batch.column(field) for field in fields]

    return _Table(file.schema_arrow, file.metadata.num_rows, columns)


def _ipc(mapped: Any) -> _Table:
    """Read the file format, or the stream format that data-set libraries write by that name."""
    import pyarrow as pa

    try:
        file = pa.ipc.open_file(mapped)
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
    except pa.ArrowInvalid:
        mapped.seek(0)
        file = pa.ipc.open_stream(mapped)
        batches = iter(file)

    def columns(fields: list[str], _: int) -> Iterator[list[Any]]:
        for batch in batches:
            found = [batch.column(field) for field in fields]
            # The format has no checksums: offsets of a damaged file point outside the memory.
            for column in found:
                column.validate(full=True)
            yield found

    return _Table(file.schema, None, columns)


def _records(path: Path, table: _Table, fields: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row's place and fields; a struct's missing keys are left out."""
    row = 0
    for columns in table.columns(fields, ROWS_OF_IDS):
        for values in zip(*(column.to_pylist() for column in columns), strict=True):
            yield f"{path}: row {row}", _without_nulls(dict(zip(fields, values, strict=True)))
            row += 1


def _rows(path: Path, table: _Table, field: str) -> Iterator[tuple[str, Any]]:
    row = 0
    for (column,) in table.columns([field], ROWS_OF_IDS):
        for value in column.to_pylist():
            yield f"{path}: row {row}", value
            row += 1


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(v) for key, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _holds_messages(dtype: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(dtype) or types.is_large_list(dtype)) and bool(
        types.is_struct(dtype.value_type)
    )


def _kind(dtype: Any, place: str) -> str:
    from pyarrow import types

    if types.is_dictionary(dtype):
        dtype = dtype.value_type
    if types.is_integer(dtype):
        return "an integer"
    if types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        inner = dtype.value_type
        if types.is_nested(inner):
            raise LengthsError(f"{place} holds {dtype}, a list of lists; write one sequence a row")
        return "a list of ids"
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        return "a text"
    raise LengthsError(f"{place} holds {dtype}; it must be an integer, a list of ids or a text")


def _whole(column: Any, place: Callable[[int], str]) -> Any:
    """Return the column without a dictionary; ``LengthsError`` names its first null."""
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise LengthsError(f"{place(row)}: is null; remove the row")
    return column


def _integers(column: Any, kind: str) -> NDArray[np.integer]:
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column) if kind == "a list of ids" else column
    array: NDArray[np.integer] = lengths.to_numpy(zero_copy_only=False)
    return array


def _count(column: Any, counter: TokenCounter, place: Callable[[int], str], out: Collector) -> None:
    # Rows are counted from this part's first, so the batch lives as long as the part.
    batch = TextBatch(counter, out)
    for i, value in enumerate(column):
        try:
            text = value.as_py()
        except UnicodeDecodeError as error:
            raise LengthsError(
                f"{place(i)}: is not UTF-8 (byte {error.start + 1}: {error.reason}); fix the row"
            ) from None
        batch.add(text, i, place)
    batch.flush(place)
