"""Stage certificates, and the table of a sweep: both ends of what certificates leave open."""

import os
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from analysis.certificates.certify import certify
from analysis.report.sweep_figure import MAX_LINES, sweep_figure
from analysis.rules import Additive, Mars, TopMAdditive
from pipeline.core import sweeps
from pipeline.core.printed_tables import print_table, summary_rows, write_rows
from pipeline.core.store import Store
from pipeline.inputs import artifact_readers as stored
from pipeline.stages.report import summary
from pipeline.study import Study
from tests.conftest import pipeline
from tests.pipeline import toy


def test_tables_of_certificates_and_run_lengths_have_intervals_and_mark_lower_bounds(
    small_study, capsys
):
    study = Study(*small_study.overrides)
    certified, lengths = (
        summary_rows(study.tasks[name], [study.artifact(name, at) for at in study.targets])
        for name in ("certificates", "run_lengths")
    )
    print_table(certified)
    printed = capsys.readouterr().out
    row = certified[1]
    interval = f"[{row['mean_ci_low']:.4g}, {row['mean_ci_high']:.4g}]"
    assert f" {row['mean']:.4g} {interval} " in printed.splitlines()[2]
    assert "from 6 prompts, fewer than 30" in printed
    assert any(row["censored"] for row in lengths)
    print_table(lengths)
    for line, row in zip(capsys.readouterr().out.splitlines()[1:], lengths, strict=False):
        assert ("≥" in line) == (row["censored"] and np.isfinite(row["value"]))
        assert f"≥ {row['value']:.4g}" in line or not row["censored"]


def point(directory, number, overrides, rows):
    sweeps.write_point(directory / str(number), overrides, stage="decoding", rows=rows)


def begin(directory):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(directory)}}})
    sweeps.Sweep().on_multirun_start(config)


def test_a_sweep_is_named_after_what_is_swept(tmp_path):
    for number, value in enumerate(["null", "3"]):
        row = {"target": "large", "method": "Strict greedy", "tokens_per_call": 1.5}
        overrides = ["study=mini", "~note", f"decoding.draft_length={value}"]
        point(tmp_path, number, overrides, [row])
    assert sweeps.collect(tmp_path) == 0
    name = "decoding_by_decoding.draft_length"
    for kind in ("csv", "parquet", "pdf", "png"):
        assert (tmp_path / f"{name}.{kind}").is_file()
    table = pd.read_parquet(tmp_path / f"{name}.parquet")
    assert table["decoding.draft_length"].tolist() == ["null", "3"]


def test_a_list_of_values_in_a_single_run_is_a_sweep(tmp_path, capsys):
    rules = [Additive(0.01), Additive(0.2), TopMAdditive(2, 0.1), Mars(0.9)]
    rows = [{"target": "T", "rule": rule.label, "mean": 0.1 * at} for at, rule in enumerate(rules)]
    key = "criteria.additive.t"
    words = ["study=mini", f"+{key}=[0.01, 0.2,0.1]", "criteria.m=[2]"]
    sweeps.publish_list_values(words, "certificates", rules, rows, tmp_path)
    (place,) = (tmp_path / "sweeps").iterdir()
    table = pd.read_csv(place / f"certificates_by_{key}.csv")
    assert table[key].tolist() == [0.01, 0.2, 0.1]  # MARS has none
    assert table["mean"].tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert {path.suffix for path in place.iterdir()} == {".csv", ".parquet", ".pdf", ".png"}
    assert f"certificates_by_{key}.csv, .parquet, .pdf, .png" in capsys.readouterr().out
    for words in (["criteria.t=[0.01]"], ["criteria.t=0.1"], ["criteria.alpha=[0.1,0.2]"], []):
        sweeps.publish_list_values(words, "certificates", rules, rows, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_sweep_over_drafters_compares_what_loses_nothing(tmp_path):
    """Of strict greedy: the accepted and the certified share, and the fastest draft length."""
    ends = {"ci_low": 0.1, "ci_high": 0.9, "prompts": 40}
    of_rule = [
        {"target": "T", "rule": rule, "statistic": name, "value": value, **ends}
        for rule, *values in (("greedy", 0.5, 0.375), ("additive t=0.1", 0.7, 0.6))
        for name, value in zip(("acceptance", "certified"), values, strict=True)
    ]
    run = {"target": "T", "rule": "greedy", "drafter": "model", "temperature": 0.0, **ends}
    runs = [
        run | {"draft_length": n, "tokens_per_call": 1 + n / 2, "speedup": speedup, "rho": n / 100}
        for n, speedup in ((1, 1.2), (2, 1.4), (3, 1.3))
    ]
    for other in ({"drafter": "prompt_lookup"}, {"temperature": 0.5}, {"rule": "additive t=0.1"}):
        runs.append(runs[0] | other | {"speedup": 2.0})
    (tmp_path / "timings/tables").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    pd.DataFrame(of_rule).to_csv(tmp_path / "tables/acceptance.csv")
    artifact = SimpleNamespace(directory=tmp_path, metadata={"targets": ["T"]})
    task = SimpleNamespace(settings={"drafter": "D"})
    [row] = summary(task, artifact)
    assert (row["target"], row["drafter"], row["accepted"]) == ("T", "D", 0.5)
    assert (row["certified"], row["certified_ci_low"], row["prompts"]) == (0.375, 0.1, 40)
    assert "speedup" not in row  # nothing was decoded
    pd.DataFrame(runs).to_csv(tmp_path / "timings/tables/decoding_speed.csv")
    [row] = summary(task, artifact)
    assert (row["γ"], row["tokens_per_call"], row["speedup"], row["cost"]) == (2, 2.0, 1.4, 0.02)
    table = pd.DataFrame([row | {"drafter": name} for name in ("small", "large")])
    assert len(sweep_figure(table, ["drafter"]).axes) == 4  # shares, tokens, speed, cost


@pytest.mark.parametrize("rules", [MAX_LINES, MAX_LINES + 1])
def test_a_sweep_figure_says_which_curves_it_leaves_out(rules):
    rows = [
        {"criteria.t": t, "target": "T", "rule": f"rule {at}", "mean": t}
        for t in (0.1, 0.2)
        for at in range(rules)
    ]
    title = sweep_figure(pd.DataFrame(rows), ["criteria.t"]).get_suptitle()
    assert (str(rules) in title) == (rules > MAX_LINES)


def test_a_sweep_in_a_used_directory_has_no_points_of_an_earlier_one(tmp_path):
    for number in range(3):
        point(tmp_path, number, [f"criteria.t={number}"], [{"target": "large", "mean": 0.1}])
    begin(tmp_path)
    shutil.rmtree(tmp_path / "0")
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    point(tmp_path, 0, ["criteria.t=0.5"], [{"target": "large", "mean": 0.1}])
    sweeps.Sweep().on_multirun_end(config)
    assert pd.read_csv(tmp_path / "decoding_by_criteria.t.csv")["criteria.t"].tolist() == [0.5]


def test_points_of_the_users_own_stay(tmp_path):
    """In a folder behind a link, of another form, or behind a link in a result's place."""
    own, used = tmp_path / "own", tmp_path / "used"
    point(own, 0, ["criteria.t=1"], [])
    used.mkdir()
    (used / "0").symlink_to(own / "0")
    with pytest.raises(SystemExit, match=rf"hydra\.sweep\.dir={used}: .*/0 is a link"):
        begin(used)
    assert (own / "0/point.json").is_file()
    (used / "0").unlink()
    for number, text in enumerate(("[1, 2]", '{"x": 3}', "x")):
        (used / str(number)).mkdir()
        (used / f"{number}/point.json").write_text(text)
    begin(used)
    assert len(list(used.glob("*/point.json"))) == 3
    shutil.rmtree(used)
    text = (own / "0/point.json").read_text()
    point(used, 0, ["criteria.t=0.5"], [{"target": "large", "mean": 0.1}])
    name = "decoding_by_criteria.t"
    for kind in ("csv", "csv.tmp", "parquet"):
        (used / f"{name}.{kind}").symlink_to(own / "0/point.json")
    (used / "0/point.json.tmp").symlink_to(own / "0/point.json")
    point(used, 0, ["criteria.t=0.5"], [{"target": "large", "mean": 0.1}])
    sweeps.collect(used)
    write_rows([{"t": 1}], used / "rows.csv")
    (used / "rows.csv").unlink()
    (used / "rows.csv").symlink_to(own / "0/point.json")
    write_rows([{"t": 1}], used / "rows.csv")
    assert (own / "0/point.json").read_text() == text
    assert pd.read_parquet(used / f"{name}.parquet")["criteria.t"].tolist() == [0.5]


def test_a_failed_point_is_named_as_it_was_given(tmp_path, capsys):
    point(tmp_path, 0, ["criteria.t=0.07"], [{"target": "large", "mean": 0.1}])
    sweeps.write_point(tmp_path / "1", ["criteria.t=7"], failed="t=7 is not allowed")
    assert sweeps.collect(tmp_path) == 1
    assert "failed: criteria.t=7: t=7 is not allowed" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "decoding_by_criteria.t.csv")["criteria.t"].tolist() == [0.07]


def test_what_did_not_vary_is_not_blamed(tmp_path, capsys):
    """A wrong value that all points have, or no value given at all."""
    for at, overrides in enumerate((["prompts.count=", "outputs=/x"], [])):
        directory = tmp_path / str(at)
        sweeps.write_point(directory / "0", overrides, failed="prompts.count='' is not allowed")
        assert sweeps.collect(directory) == 1
        assert capsys.readouterr().out == "failed: prompts.count='' is not allowed\n"


def test_a_sweep_without_overrides_has_a_table(tmp_path):
    point(tmp_path, 0, [], [{"target": "large", "mean": 0.1}])
    assert sweeps.collect(tmp_path) == 0
    assert pd.read_csv(tmp_path / "decoding.csv")["mean"].tolist() == [0.1]


@pytest.mark.parametrize("damage", [
    lambda path: path.write_text("{"), lambda path: path.write_text("[]"),
    lambda path: path.write_bytes(b"\xff"), toy.flip,
    lambda path: (path.unlink(), os.mkfifo(path)), lambda path: (path.unlink(), path.mkdir()),
])  # fmt: skip
def test_a_damaged_point_is_named_and_the_others_are_kept(damage, tmp_path, capsys):
    for number, t in enumerate((0.1, 0.2, 0.3)):
        point(tmp_path, number, [f"criteria.t={t}"], [{"target": "large", "mean": t}])
    for name in ("1x", "x", "-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "point.json").touch()
    damage(tmp_path / "1" / "point.json")
    assert sweeps.collect(tmp_path) == 1
    assert f"failed: {tmp_path}/1/point.json " in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "decoding_by_criteria.t.csv")["criteria.t"].tolist() == [0.1, 0.3]


def sweep(*words):
    return pipeline(
        "-m", "study=mini", "stage=certificates", "criteria=additive", *words, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["outputs={here}", "criteria.t=range(1,0)"],
            "criteria.t=range(1,0): the sweep has no point",
        ),
        (["outputs={here}", "criteria.t=0.1", "hydra.sweep.dir='~/x'"], "hydra.sweep.dir=~/x"),
        (["outputs='~nobody here/x'", "criteria.t=0.1"], "hydra.sweep.dir=~nobody here/x"),
    ],
)
def test_a_sweep_that_can_not_be_is_refused(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = sweep(*(word.format(here=tmp_path) for word in words))
    assert done.returncode == 1
    assert said in done.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("~")]


def test_a_statistic_that_no_point_has_is_not_drawn(tmp_path):
    for number, t in enumerate((0, 0.1)):
        row = {"target": "large", "accepted": 0.5, "coverage": None}
        row |= {"coverage_ci_low": None, "coverage_ci_high": None}
        point(tmp_path, number, [f"criteria.t={t}"], [row])
    assert sweeps.collect(tmp_path) == 0
    assert (tmp_path / "decoding_by_criteria.t.pdf").is_file()


def test_an_override_is_named_as_it_was_given(tmp_path):
    """Though it holds an interpolation, of what is there or is not."""
    note = "note='a ${study} b ${oc.env:NOWHERE}'"
    done = sweep(f"outputs={tmp_path}", note, "criteria.t=0.1,0.2")
    assert done.returncode == 1
    assert done.stdout.count("note: KeyError") == 2
    assert "failed: criteria.t=0.1: note: KeyError" in done.stdout


def test_outputs_below_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = sweep("outputs='~/x'", "criteria.t=7")
    assert "criteria" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert list((tmp_path / "x").rglob("point.json"))


def test_every_rule_is_read_over_the_same_steps_in_their_order(small_study, tmp_path, monkeypatch):
    """Of a dump that is certified in two chunks: a row group holds a rule and a chunk."""
    study = Study(*small_study.overrides)
    for stage in ("prompts", "distributions"):
        shutil.copytree(study.store.root / stage, tmp_path / stage)
    dump = study.artifact("distributions", "mini_large")
    steps = dump.read(columns=["prompt_id", "position"])
    monkeypatch.setattr(stored, "chunks", partial(stored.chunks, rows=2 * len(steps) // 3))
    certificates = Store(tmp_path).get(study.tasks["certificates"][0])
    with certificates.open("data") as file:
        assert file.num_row_groups == 2 * len(study.rules)
    wanted = certify(stored.read_distributions(dump), study.rules)
    for at, rule in enumerate(study.rules):
        found = certificates.read(rule=rule.label)
        assert found["rule"].to_pylist() == [rule.label] * len(steps)
        assert found.select(["prompt_id", "position"]).equals(steps)
        np.testing.assert_array_equal(found["lower"], wanted.lower[:, at])
        np.testing.assert_array_equal(found["upper"], wanted.upper[:, at])
        np.testing.assert_array_equal(found["active_size"], wanted.active_size[:, at])
        counts = found["accepted_count"].fill_null(0).to_numpy()
        np.testing.assert_array_equal(counts, wanted.accepted_count[:, at].clip(0))
    assert len(certificates.read()) == len(study.rules) * len(steps)
