"""Every column has a meaning, and files are checked against their schema."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.columns import check_schema
from pipeline.study import STAGES
from tools import columns as printed


def test_the_command_prints_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    printed.main([])
    said = capsys.readouterr().out
    assert said.count(".parquet\n") == sum(len(stage.tables) for stage in STAGES.values())
    printed.main(["certificates"])
    alone = capsys.readouterr().out
    assert alone in said
    assert "    lower                    float64        the certificate is at least this;" in alone
    with pytest.raises(SystemExit, match="nothing is no stage: give one of prompts, "):
        printed.main(["nothing"])


def test_every_column_has_a_meaning() -> None:
    for stage in STAGES.values():
        for name, columns in stage.tables.items():
            for label, column in columns.items():
                assert column.meaning.strip(), f"{stage.name} {name}: {label}"


def test_other_columns_and_types_are_refused() -> None:
    stage = STAGES["certificates"]
    good, columns = stage.schema(), stage.tables["data"]
    check_schema(columns, good, Path("x"))
    with pytest.raises(ValueError, match=r"x has the columns .*, expected"):
        check_schema(columns, good.remove(0), Path("x"))
    other = good.set(good.get_field_index("lower"), pa.field("lower", pa.float32()))
    with pytest.raises(ValueError, match=r"x has the columns .*'lower': .*float.*, expected"):
        check_schema(columns, other, Path("x"))
    with pytest.raises(ValueError, match="x has the columns"):
        check_schema(columns, pa.schema([*good][::-1]), Path("x"))


def test_optional_columns_may_be_missing() -> None:
    for stage in STAGES.values():
        for name, columns in stage.tables.items():
            fields = stage.schema(name)
            there = pa.schema([field for field in fields if not columns[field.name].optional])
            check_schema(columns, there, Path("x"))


def test_lists_have_no_fixed_length() -> None:
    schema = STAGES["drafts"].schema()
    assert schema.field("top_ids").type == pa.list_(pa.int32())
    assert schema.field("top_logits").type == pa.list_(pa.float32())
