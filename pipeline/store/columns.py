"""The columns of every file of every artifact, as its stage declares them, in Arrow's types.

A stage names types as Arrow does: int32, float64, bool, string, list<int32>; a column that some
artifacts lack ends with ?. Units: token ids are
indices of the vocabulary, logits are raw, everything else is in nats or a probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Columns = dict[str, str]  # of a file: the type of each column

STEP: Columns = {"prompt_id": "string", "position": "int32"}
TARGET: Columns = {  # of the target's distribution; lists of its K top tokens, by decreasing logit
    "top_ids": "list<int32>",
    "top_logits": "list<float32>",
    "logsumexp": "float64",
    "top_surprisal": "float64",  # -log p of rank 1: what probabilities are computed from
    "log_tail": "float64",
    "entropy": "float64",
}
TEMPERED: Columns = {  # lists, a number for each of facts["temperatures"]: there may be none
    "tempered_top_surprisal": "list<float64>",
    "tempered_log_tail": "list<float64>",
    "tempered_entropy": "list<float64>",
}
COUNTED: Columns = {  # beside intervals
    "prompts": "int32",
    "few_prompts": "bool",  # too few to trust them, analysis.statistics.bootstrap.FEW_PROMPTS
}


def columns_of(stage: str) -> Mapping[str, Mapping[str, str]]:
    """Return the columns of each Parquet file of a stage: a stage is a module of its name."""
    found: Mapping[str, Mapping[str, str]] = import_module(f"pipeline.stages.{stage}").STAGE.columns
    return found


def arrow(kind: str) -> pa.DataType:
    """Return the Arrow type of a name.

    >>> arrow("list<int32>")
    ListType(list<item: int32>)
    """
    import pyarrow as pa

    kind = kind.removesuffix("?")
    if kind.startswith("list<"):
        return pa.list_(arrow(kind.removeprefix("list<").removesuffix(">")))
    return pa.type_for_alias(kind)


def array(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return a column of numbers, or of lists of them, all of the same length."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        flat = pa.array(values.reshape(-1), kind.value_type)
        if pa.types.is_fixed_size_list(kind):
            return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
        begins = [at * values.shape[1] for at in range(len(values) + 1)]
        return pa.ListArray.from_arrays(pa.array(begins, pa.int32()), flat)
    return pa.array(values, kind)


def table(values: Mapping[str, np.ndarray], schema: pa.Schema) -> pa.Table:
    """Return the table of a schema from its columns by name."""
    import pyarrow as pa

    arrays = [array(values[field.name], field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def steps_table(prompt: str, values: Mapping[str, np.ndarray], schema: pa.Schema) -> pa.Table:
    """Return the table of the n steps of a prompt from its other columns (n, ...) by name."""
    import numpy as np

    n = len(values["token_id"])
    place = {"prompt_id": np.full(n, prompt, dtype=object), "position": np.arange(n)}
    return table({**values, **place}, schema)


def numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column without nulls: (N,) numbers or flags, or (N, K) of lists of one length."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        return numbers(column.flatten()).reshape(len(column), -1)
    return column.to_numpy(zero_copy_only=False)


def schema(
    stage: str,
    name: str = "data",
    k: int | None = None,
    draft_k: int | None = None,
    depths: int | None = None,
    *,
    optional: bool = False,
) -> pa.Schema:
    """Return the Arrow schema of a file.

    `k` fixes the length of the lists of the target's top K, `draft_k` of the drafter's,
    `depths` of what is known of it by depth. `optional` columns are in it, or not.
    """
    import pyarrow as pa

    lengths = {"top_ids": k, "top_logits": k}
    lengths |= {"draft_top_ids": draft_k, "draft_top_logits": draft_k}
    fields = []
    for column, named in columns_of(stage)[name].items():
        if named.endswith("?") and not optional:
            continue
        kind = arrow(named)
        length = depths if column.startswith("depth_") else lengths.get(column)
        fields.append(
            pa.field(column, kind if length is None else pa.list_(kind.value_type, length))
        )
    return pa.schema(fields)


def check_schema(stage: str, name: str, found: pa.Schema, path: Path) -> None:
    """Check that a file has exactly the columns and types its stage writes.

    Raises:
        PipelineError: a column is missing, unknown or of another type.
    """
    import pyarrow as pa

    wanted = columns_of(stage).get(name)
    if wanted is None:
        return
    wanted = {
        column: named
        for column, named in wanted.items()
        if column in found.names or not named.endswith("?")
    }
    if found.names != list(wanted):
        raise PipelineError(f"{path} has the columns {found.names}, expected {list(wanted)}")
    for column, named in wanted.items():
        kind, actual = arrow(named), found.field(column).type
        if pa.types.is_fixed_size_list(actual):
            actual = pa.list_(actual.value_type)
        if actual != kind:
            raise PipelineError(f"{path}: column {column} is {actual}, expected {kind}")
