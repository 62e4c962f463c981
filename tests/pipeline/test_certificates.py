"""Stage certificates: all rules in one artifact, each read by itself; what solve makes of them."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.certificates.certify import certify
from pipeline import solve
from pipeline.paths import ROOT
from pipeline.store import Store
from pipeline.stored import ROWS, read_distributions
from tests.pipeline.studies import MadeUp

RULES = [{"rule": "greedy"}, {"rule": "additive", "t": [0.3]}, {"rule": "tree", "m": 2}]


def test_every_rule_is_read_over_the_same_steps_in_their_order(tmp_path):
    """Of a dump that is certified in two chunks: a row group holds a rule and a chunk."""
    store, lengths = Store(tmp_path), [128] * 64 + [9]
    assert ROWS < sum(lengths) < 2 * ROWS
    made = MadeUp(store, RULES, lengths=lengths)
    dump, certificates = map(store.get, made.target("t", 0))
    with certificates.open("data") as file:
        assert file.num_row_groups == 2 * len(made.rules)
    wanted = certify(read_distributions(dump), made.rules)
    for at, rule in enumerate(made.rules):
        found = certificates.read(rule=rule.label)
        assert set(found["rule"].to_pylist()) == {rule.label}
        assert found["prompt_id"].to_pylist() == made.prompt_id.tolist()
        np.testing.assert_array_equal(found["position"], made.position)
        np.testing.assert_array_equal(found["lower"], wanted.lower[:, at])
        np.testing.assert_array_equal(found["upper"], wanted.upper[:, at])
        np.testing.assert_array_equal(found["active_size"], wanted.active_size[:, at])
        counts = found["accepted_count"].fill_null(0).to_numpy()
        np.testing.assert_array_equal(counts, wanted.accepted_count[:, at].clip(0))
    assert len(certificates.read()) == len(made.rules) * sum(lengths)


def test_solve_prints_the_main_rows_and_writes_all(small_study, capsys):
    solve.main([*small_study.overrides, "solve.draft_lengths=[3,7]"])
    lines = capsys.readouterr().out.splitlines()
    for heading in ("Strictest setting that", "Tokens per call, by", "A drafter is certified on"):
        assert any(line.startswith(heading) for line in lines)
    assert any("any drafter within 0.05" in line for line in lines)
    file = Path(lines[-1].removeprefix("all rows: "))
    rows = pd.read_csv(file if file.is_absolute() else ROOT / file)
    assert set(rows["table"]) == {"solved", "promised", "needed"}
    shown = [line for line in lines if " additive " in line and "this drafter" in line]
    assert len(shown) == 2  # a row a target; the file has one for each that is wanted
    mine = rows[(rows["rule"] == "additive") & (rows["kind"] == "measured")]
    assert len(mine) == 2 * mine["wanted"].nunique()
