"""Every column is documented, and files are checked against their schema."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import PipelineError
from pipeline.paths import ROOT
from pipeline.plan.graph import STAGES
from pipeline.store import columns

FILES = [(stage.name, name) for stage in STAGES.values() for name in stage.columns]


@pytest.mark.parametrize(("stage", "name"), FILES)
def test_every_column_is_documented(stage: str, name: str) -> None:
    text = (ROOT / "docs" / "data.md").read_text()
    section = next(part for part in text.split("\n## ") if re.match(rf"{stage}\b", part))
    shared = text if stage == "drafts" else section  # drafts refers to distributions
    for column in STAGES[stage].columns[name]:
        assert re.search(rf"\b{column}\b", shared), f"docs/data.md, {stage} {name}: {column}"


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
