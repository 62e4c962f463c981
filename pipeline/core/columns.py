"""The columns of artifacts' Parquet files: type and meaning, as each stage declares them.

A file carries them in its schema. Token ids are indices of the vocabulary, logits are raw, and
everything else is in nats or a probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

Row = dict[str, Any]  # values by column
Tables = dict[str, list[Row]]  # rows by the table's name


class Column(NamedTuple):
    """A column of a Parquet file."""

    kind: str  # Arrow's name of the type: int32, float64, bool, string, list<int32>
    meaning: str  # in one line
    optional: bool = False  # whether some artifacts lack the column


Columns = dict[str, Column]  # of a file, by name

STEP: Columns = {
    "prompt_id": Column("string", "the prompt"),
    "position": Column("int32", "the decoding step, from 0"),
}
TARGET: Columns = {  # of the target's distribution
    "top_ids": Column("list<int32>", "the K tokens with the largest logits, ties by id"),
    "top_logits": Column("list<float32>", "their raw logits, decreasing; -inf for masked tokens"),
    "logsumexp": Column("float64", "of the logits over the temperature, whole vocabulary"),
    "top_surprisal": Column("float64", "-log p of rank 1; probabilities are computed from it"),
    "log_tail": Column("float64", "log of the mass outside the top K; -inf when K = V"),
    "entropy": Column("float64", "over the whole vocabulary, nats"),
}
INTERVAL: Columns = dict.fromkeys(
    ("ci_low", "ci_high"), Column("float64", "bootstrap interval over prompts")
)
CUT: Columns = {
    "cut": Column("float64", "share of the calls (mean_run: runs) that the trajectory's end cuts")
}
METHOD: Columns = {  # of decoding; see pipeline.settings.methods
    "method": Column("string", "name of the rule or sampling scheme"),
    "drafter": Column("string", "model, prompt_lookup or none"),
    "draft_length": Column("int32", "drafted tokens a call, at most"),
    "temperature": Column("float64", "of target and drafter"),
}
GIVEN_UP: Columns = {
    "nats_given_up": Column(
        "float64", "log(p0/p), nats below the target's first choices, sum over the tokens"
    )
}
COMMON: Columns = {
    "common_prefix": Column(
        "int32", "tokens before the first difference from the baseline's answer"
    )
}
COUNTED: Columns = {"prompts": Column("int32", "prompts behind the interval")}


def arrow(kind: str) -> pa.DataType:
    """Return the Arrow type with a name.

    >>> arrow("list<int32>")
    ListType(list<item: int32>)
    """
    import pyarrow as pa

    if kind.startswith("list<"):
        return pa.list_(arrow(kind.removeprefix("list<").removesuffix(">")))
    return pa.type_for_alias(kind)


def schema(columns: Columns) -> pa.Schema:
    """Return the Arrow schema of columns."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field(label, arrow(column.kind), metadata={"meaning": column.meaning})
            for label, column in columns.items()
        ]
    )


def check_schema(columns: Columns, schema: pa.Schema, path: Path) -> None:
    """Raise a ValueError unless a file has its stage's columns, in order and of the right types."""
    present = list(zip(schema.names, schema.types, strict=True))
    wanted = [
        (name, arrow(column.kind))
        for name, column in columns.items()
        if name in schema.names or not column.optional
    ]
    if present != wanted:
        raise ValueError(f"{path} has the columns {dict(present)}, expected {dict(wanted)}")


def table(values: Mapping[str, np.ndarray], schema: pa.Schema) -> pa.Table:
    """Return a table with a schema from its columns by name; (N, K) arrays become lists."""
    import pyarrow as pa

    arrays = [
        pa.array(list(column) if column.ndim > 1 else column, field.type)
        for field in schema
        for column in [values[field.name]]
    ]
    return pa.table(arrays, schema=schema)


def steps_table(prompt: str, values: Mapping[str, np.ndarray], schema: pa.Schema) -> pa.Table:
    """Return the table of a prompt's n steps; `values` has all other columns, (n, ...)."""
    import numpy as np

    n = len(values["token_id"])
    index = {"prompt_id": np.full(n, prompt, dtype=object), "position": np.arange(n)}
    return table({**values, **index}, schema)


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column without nulls as an array: (N,), or (N, K) if it holds lists of K numbers."""
    import numpy as np
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_list(column.type):
        return numbers(column.flatten()).reshape(len(column), -1)
    if pa.types.is_boolean(column.type):
        return column.to_numpy(zero_copy_only=False)
    return np.from_dlpack(column)  # `to_numpy` imports pandas, which takes as long as a cached run
