"""Every column is documented, and files are checked against their schema."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.columns import Column
from pipeline.stage import check_columns
from pipeline.study import STAGES
from tools.columns import PAGE, filled, table

FILES = [(stage.name, name) for stage in STAGES.values() for name in stage.tables]


def test_the_page_shows_the_columns_that_the_stages_declare() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "python -m tools.columns writes the tables of docs/data.md"
    shown = re.findall(r"<!-- columns: (\S+) (\S+) -->\n\n\| column", page)
    assert sorted(shown) == sorted(FILES)


def test_neighbours_of_one_meaning_share_a_row() -> None:
    end = Column("float64", "interval")
    rows = table({"low": end, "high": end, "n": Column("int32", "prompts")}).splitlines()
    assert rows[2:] == ["| low, high | `float64` | interval |", "| n | `int32` | prompts |"]


def test_every_column_has_a_meaning() -> None:
    for stage, name in FILES:
        for label, column in STAGES[stage].tables[name].items():
            assert column.meaning.strip(), f"{stage} {name}: {label}"
            assert "|" not in column.meaning, f"{stage} {name}: {label}"  # ends a Markdown cell


def test_other_columns_and_types_are_refused() -> None:
    stage = STAGES["certificates"]
    good, columns = stage.schema(), stage.tables["data"]
    check_columns(columns, good, Path("x"))
    with pytest.raises(ValueError, match=r"x has the columns .*, expected"):
        check_columns(columns, good.remove(0), Path("x"))
    other = good.set(good.get_field_index("lower"), pa.field("lower", pa.float32()))
    with pytest.raises(ValueError, match=r"x has the columns .*'lower': .*float.*, expected"):
        check_columns(columns, other, Path("x"))
    with pytest.raises(ValueError, match="x has the columns"):
        check_columns(columns, pa.schema([*good][::-1]), Path("x"))


def test_optional_columns_may_be_missing() -> None:
    for stage in STAGES.values():
        for name, columns in stage.tables.items():
            optional = [label for label, column in columns.items() if column.optional]
            check_columns(columns, stage.schema(name, optional=False), Path("x"))
            assert set(stage.schema(name).names) - {*optional} == {
                *stage.schema(name, optional=False).names
            }


def test_lists_have_no_fixed_length() -> None:
    schema = STAGES["drafts"].schema()
    assert schema.field("top_ids").type == pa.list_(pa.int32())
    assert schema.field("top_logits").type == pa.list_(pa.float32())
