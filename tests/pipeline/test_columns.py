"""Every column is documented, and files are checked against their schema."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline import columns
from pipeline.errors import PipelineError
from pipeline.study import STAGES
from tools.columns import PAGE, filled, table

FILES = [(stage.name, name) for stage in STAGES.values() for name in stage.columns]


def test_the_page_shows_the_columns_that_the_stages_declare() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "python -m tools.columns writes the tables of docs/data.md"
    shown = re.findall(r"<!-- columns: (\S+) (\S+) -->\n\n\| column", page)
    assert sorted(shown) == sorted(FILES)


def test_neighbours_of_one_meaning_share_a_row() -> None:
    end = columns.Column("float64", "interval")
    rows = table({"low": end, "high": end, "n": columns.Column("int32", "prompts")}).splitlines()
    assert rows[2:] == ["| low, high | `float64` | interval |", "| n | `int32` | prompts |"]


def test_every_column_has_a_meaning() -> None:
    for stage, name in FILES:
        for label, column in STAGES[stage].columns[name].items():
            assert column.meaning.strip(), f"{stage} {name}: {label}"
            assert "|" not in column.meaning, f"{stage} {name}: {label}"  # ends a Markdown cell


def test_other_columns_and_types_are_refused() -> None:
    good = columns.schema("certificates")
    columns.check_schema("certificates", "data", good, Path("x"))
    with pytest.raises(PipelineError, match="has the columns"):
        columns.check_schema("certificates", "data", good.remove(0), Path("x"))
    other = good.set(2, pa.field("lower", pa.float32()))
    with pytest.raises(PipelineError, match="column lower is float, expected double"):
        columns.check_schema("certificates", "data", other, Path("x"))


def test_lists_of_k_have_a_fixed_length() -> None:
    schema = columns.schema("distributions", k=7)
    assert schema.field("top_logits").type == pa.list_(pa.float32(), 7)
    columns.check_schema("distributions", "data", schema, Path("x"))
    schema = columns.schema("drafts", k=7, draft_k=5)
    assert schema.field("top_ids").type == pa.list_(pa.int32(), 7)
    assert schema.field("draft_top_logits").type == pa.list_(pa.float32(), 5)
