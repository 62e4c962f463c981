"""Every column has a meaning, and files are checked against their schema."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.columns import check_schema
from pipeline.study import STAGES
from tools import columns as printed


def test_the_command_prints_every_column(capsys):
    printed.main([])
    said = capsys.readouterr().out
    assert said.count(".parquet\n") == sum(len(stage.tables) for stage in STAGES.values())
    printed.main(["certificates"])
    alone = capsys.readouterr().out
    assert alone in said
    assert "    lower                    float64        the certificate is at least this;" in alone
    with pytest.raises(SystemExit, match="nothing is no stage: give one of prompts, "):
        printed.main(["nothing"])


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_every_column_has_a_meaning_and_optional_ones_may_be_missing(stage):
    for name, columns in stage.tables.items():
        assert all(column.meaning.strip() for column in columns.values())
        fields = stage.schema(name)
        there = pa.schema([field for field in fields if not columns[field.name].optional])
        check_schema(columns, there, Path("x"))
        for field in fields:  # lists have no fixed length
            assert not pa.types.is_fixed_size_list(field.type)


def test_other_columns_and_types_are_refused():
    stage = STAGES["certificates"]
    good, columns = stage.schema(), stage.tables["data"]
    check_schema(columns, good, Path("x"))
    other = good.set(good.get_field_index("lower"), pa.field("lower", pa.float32()))
    for wrong in (good.remove(0), other, pa.schema([*good][::-1])):
        with pytest.raises(ValueError, match=r"x has the columns .*, expected"):
            check_schema(columns, wrong, Path("x"))
