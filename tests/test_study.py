"""The whole pipeline from the command line: cached, swept, and read by the notebooks."""

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Image

from analysis.acceptance.judgement import judge
from analysis.certificates.certify import certify
from analysis.report import style
from analysis.rules import Additive, StrictGreedy, Tree
from pipeline import solve
from pipeline.core.errors import PipelineError
from pipeline.core.paths import ROOT
from pipeline.inputs.artifact_readers import read_steps
from pipeline.stages.report import inputs, page
from pipeline.study import Study
from tests.conftest import HEAVY, SMALL, SmallStudy, pipeline
from tests.pipeline.reading import page_text, unnamed

TEXTS = ("md", "csv", "tex")  # files of a report in which names stand
BROKEN = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"


@pytest.fixture(scope="module")
def small_study(small_study, tmp_path_factory):
    """A copy: these tests count what is computed, and sweeps add to it."""
    outputs = tmp_path_factory.mktemp("copied") / "outputs"
    shutil.copytree(small_study.outputs, outputs, symlinks=True)
    return SmallStudy(outputs, [*SMALL, f"outputs={outputs}"], small_study.printed)


def contents(outputs):
    """Record of every artifact by path."""
    return {path: path.read_text() for path in outputs.glob("artifacts/*/[!.]*/record.json")}


def test_the_report_has_the_papers_files_and_names_them(small_study):
    report = small_study.outputs / "report" / "mini"
    files = re.findall(r"`((?:tables|figures)/\S+)`", (ROOT / "docs/run.md").read_text())
    papers = {f"tables/table{number}.csv" for number in range(1, 7)}
    assert papers | {f"figures/figure{number}.pdf" for number in range(1, 6)} <= set(files)
    assert [file for file in files if not (report / file).is_file()] == []
    assert unnamed(report) == []


def test_again_computes_nothing_and_loads_nothing_heavy(small_study):
    before = contents(small_study.outputs)
    script = (
        "import sys; from pipeline.cli import main; main()\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, *small_study.overrides], cwd=ROOT,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert "computing" not in done.stdout
    assert "cached" in done.stdout
    assert "heavy: []" in done.stdout
    assert contents(small_study.outputs) == before


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            "solve.rules=[{rule: topm_additive, m: 1000}]",
            r"^solve.rules: .*set distributions\.k to ",
        ),
        ("solve.draft_lengths=[100000000000000000000]", r"^solve\.draft_lengths"),
    ],
)
def test_what_solve_cannot_try_is_named(small_study, given, named):
    with pytest.raises(PipelineError, match=named):
        solve.tables(Study(*small_study.overrides, given))


def test_solve_agrees_with_a_sweep_of_certificates(small_study, capsys, tmp_path):
    given = [
        *small_study.overrides, "solve.eps=0.05", "solve.share=0.8", "solve.draft_lengths=[3]",
        "solve.rules=[additive, tree]",
    ]  # fmt: skip
    study = Study(*given)
    found = solve.tables(study)
    solved = [row for row in found["solved"] if row["kind"] == "certified"]
    assert len(solved) == 2 * 2 * 3
    targets = {study.config.targets[name].label: name for name in study.targets}
    for row in solved:
        if row["wanted"] == "80 % of steps" and not math.isnan(row["value"]):
            dist = study.distributions(targets[row["target"]])
            rule = Tree(int(row["value"])) if row["parameter"] == "m" else Additive(row["value"])
            share = np.mean(certify(dist, rule).lower > 0.05)
            assert share == pytest.approx(row["reached"])
            assert share >= 0.8
    label, target = next(iter(targets.items()))
    promised = {
        row["drafts"]: row["tokens"]
        for row in found["promised"]
        if (row["target"], row["rule"], row["kind"]) == (label, "greedy", "certified")
    }
    position = study.artifact("distributions", target).read(columns=["position"])["position"]
    first = position.to_numpy() == 0
    last = np.append(first[1:], True)
    sure = certify(study.distributions(target), StrictGreedy()).lower[:, 0] > 0.05
    calls = np.sum(~sure & ~first) + np.sum(sure & last & ~first)  # rejected, or cut
    assert promised["of any length"] == pytest.approx(np.sum(~first) / calls)
    assert promised["of 3"] <= min(4.0, promised["of any length"]) + 1e-9
    accepted = {
        (row["at"], row["kind"]): row["accepted"]
        for row in found["usual"]
        if (row["target"], row["rule"]) == (label, "greedy")
    }
    assert accepted["KL 0.05", "certified"] == pytest.approx(sure.mean())
    for at in ("KL 0.05", "this drafter's KLs"):
        assert accepted[at, "certified"] < accepted[at, "usual"] < 1
    drafts = read_steps(study.store.find(study.task("drafts", target)))
    drafted = judge(drafts, "greedy")[0].accepted.mean()
    assert accepted["this drafter's KLs", "measured"] == pytest.approx(drafted)
    assert accepted["this drafter's KLs", "usual"] == pytest.approx(drafted, abs=0.1)
    (within,) = (row["within"] for row in found["within"] if row["target"] == label)
    assert 0 < within < 1
    assert within == pytest.approx(np.mean(drafts.kl <= 0.05))
    solve.main([*given, "criteria=greedy"])
    printed = capsys.readouterr().out
    assert f"is at most 0.05 at {100 * within:.1f} %" in printed
    rows = pd.read_csv(ROOT / printed.splitlines()[-1].removeprefix("all rows: "))
    assert set(rows["table"]) == {"solved", "promised", "usual", "needed", "within"}
    with pytest.raises(SystemExit, match=r"not exist yet: run `python -m pipeline .*stage=dist"):
        solve.main([*given, f"outputs={tmp_path}"])


@pytest.mark.parametrize(("step", "ranked"), [(0, 5), (-1, 4)])
def test_a_drafter_at_the_kl_is_within_it(small_study, step, ranked):
    """The fifth smallest KL is at most itself, and not at most the number before it."""
    study = Study(*small_study.overrides)
    kl = read_steps(study.store.find(study.task("drafts", study.targets[0]))).kl
    fifth = np.sort(kl)[4]
    eps = float(fifth) if step == 0 else float(np.nextafter(fifth, step))
    given = Study(*small_study.overrides, f"solve.eps={eps!r}")
    (row,) = solve.SolvedTarget(given, study.targets[0]).within()
    assert row["within"] * len(kl) == pytest.approx(ranked)


def test_sweep_reuses_the_dump_and_adds_only_what_is_new(small_study):
    def sweep(values):
        given = ["stage=certificates", "criteria=additive", f"criteria.t={values}"]
        return pipeline("-m", *small_study.overrides, *given).stdout

    dump = small_study.outputs / "artifacts/distributions"
    before = {path: path.stat().st_mtime_ns for path in dump.rglob("*")}
    first = sweep("0.07,0.11")
    assert first.count("computing") == 4  # two values, two targets
    assert "plan: prompts 1 cached, distributions 2 cached, certificates 2 to run\n" in first
    second = sweep("0.07,0.09,0.11")
    assert second.count("computing") == 2
    points = re.split(r"^point \d: ", second, flags=re.MULTILINE)[1:]
    assert [point.count(": cached -> ") for point in points] == [2, 0, 2]
    assert "point 2: criteria.t=0.09\n" in second
    assert {path: path.stat().st_mtime_ns for path in dump.rglob("*")} == before
    latest = max((small_study.outputs / "sweeps").glob("*/certificates_by_criteria.t.csv"))
    table = pd.read_csv(latest)
    assert sorted(table["criteria.t"].unique()) == [0.07, 0.09, 0.11]
    for _, part in table.groupby("target"):
        assert part.sort_values("criteria.t")["mean"].is_monotonic_increasing
    assert latest.with_suffix(".png").stat().st_size > 1000


@pytest.mark.thorough
def test_names_and_prompts_are_shown_as_they_are_given(small_study, monkeypatch):
    """Never as markup, and nothing but the report is made anew; a rule alone has a report, too."""
    monkeypatch.setattr(style, "render", lambda *_: b"")  # drawing takes most of the time
    monkeypatch.setattr(page, "embedded", lambda _: "data:image/png,")
    read = inputs.read_target
    monkeypatch.setattr(
        inputs, "read_target", lambda *of: replace(read(*of), prompt_texts=[BROKEN] * 6)
    )
    names = [r"9|$x$_<b>&amp;%#{a}\^~ *e* [k](u) `c`", "a <script>window.broken = 1", "D $^~`<img>"]
    keys = ["targets.mini_large", "targets.mini_small", "drafter"]
    renamed = [f"{key}.label='{name}'" for key, name in zip(keys, names, strict=True)]
    printed = pipeline(*small_study.overrides, *renamed, "study_name=renamed").stdout
    assert re.findall(r"^(\w+) .*: computing", printed, re.MULTILINE) == ["report"]
    report = small_study.outputs / "report" / "renamed"
    texts = {path: path.read_text() for path in report.rglob("*.*") if path.suffix[1:] in TEXTS}
    assert len(texts) > 30
    for path, text in texts.items():
        assert not re.search("mini-(large|small|drafter)", text), path
        for line in re.findall(r".*\\\\$", text, re.MULTILINE):  # rows of LaTeX
            bare = re.sub(r"\\([&%$#_{}])", "", line)
            assert bare.count("$") % 2 == bare.count("{") - bare.count("}") == 0, line
            assert not set("|#_~") & set(re.sub(r"\$[^$]*\$", "", bare)), line
    markup, said = (report / "index.html").read_text(), page_text(report).replace("\u00a0", " ")
    assert markup.count("<script") == markup.count("</script") == 1
    assert markup.count("<img") == markup.count('<img src="data:image/png')
    assert f"\nWill {names[2]} be accepted?\n" in said
    assert f"Its prompt: {BROKEN}" in said
    pipeline(*small_study.overrides, "criteria=mars", "drafter=none", "study_name=one")
    assert unnamed(small_study.outputs / "report" / "one") == []


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KNOB = 'overrides = ["study=quick"]'


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stripped_and_runs(path, small_study, capsys):
    cells = json.loads(path.read_text())["cells"]
    assert len(cells) <= 12
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    assert sources[0].startswith(KNOB)
    sources[0] = sources[0].replace(KNOB, f"overrides = {small_study.overrides!r}")
    shell = InteractiveShell()
    shown = []
    for cell, source in zip(code, sources, strict=True):
        assert not cell["outputs"], f"{path}: clear all outputs before a commit"
        assert cell["execution_count"] is None, path
        shown.append(shell.run_cell(source))
        shown[-1].raise_error()
    assert plt.get_fignums() or any(isinstance(cell.result, Image) for cell in shown)
    plt.close("all")
    assert not re.search(r"'token \d+'", capsys.readouterr().out)  # every token has a text
