"""Every configuration composes; wrong values fail before any work and say what is allowed."""

import re

import pytest
from omegaconf import OmegaConf

from pipeline import cli, solve
from pipeline.core.errors import PipelineError, collect_errors, one_line
from pipeline.core.paths import CONF
from pipeline.settings.composition import composed, files_and_overrides, report_name, settings_of
from pipeline.settings.criteria import build_rules
from pipeline.settings.method_config import build_methods
from pipeline.settings.methods import methods_of
from pipeline.study import Study
from tests.conftest import pipeline
from tests.pipeline import tiny

GROUPS = ("study", "target", "drafter", "prompts", "criteria", "decoding")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


def mini(*overrides):
    return composed(["study=mini", *overrides])


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group, option):
    config = mini(f"{'+target' if group == 'target' else group}={option}")
    if (group, option) == ("decoding", "settings"):  # which has none, for those of one's own
        config = mini(
            f"{group}={option}",
            "+decoding.methods.one={drafter: model, rule: greedy, draft_length: 2}",
        )
    with collect_errors(problems := list[str]()):
        settings = settings_of(config)
        rules, decoded = build_rules(settings.criteria)
        assert rules
        assert build_methods(settings.decoding.methods, decoded, settings.decoding.draft_length)
    assert all(re.fullmatch(r"\S+\.(path|source) must be given", one) for one in problems)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distributions.k=0", "distributions.k=0: should be greater than or equal to 1"),
        ("run_lengths.eps=[0.1,0.1]", r"run_lengths.eps=\[0.1, 0.1\]: should have no value twice"),
        ("targets.mini_large.label=../x", r"label='../x': should be a name that begins"),
        ("study_name=5", r"study_name=5: .* so quote it: \"study_name='5'\""),
        ("device=auto", r"device='auto': has keys of its own: give device\.KEY=VALUE"),
        ("stage=certificate", r"stage='certificate': .*\(did you mean certificates\?\)"),
        ("distributions.kk=3", r"distributions.kk is not known \(did you mean k\?\): give"),
        ("~distributions", "distributions must be given"),
        ("+target=local", r"targets\.local\.path must be given"),
        ("note=${nothing}", "note: Interpolation key 'nothing' not found"),
        ("study=nini", r"there is no study=nini \(did you mean mini\?\)"),
        ("drafter=/models/mine", "drafter=local drafter.path=PATH for a model of your own"),
        ("outputs=o'brien", "o'brien.* can't be read: .*quoted: \"key='VALUE'\""),
        ("criteria.t=0.1,0.2", "'criteria.t=0.1,0.2': give -m as well"),
        ("criteria.t=0.1", "criteria.t is not known: .*a rule as well: criteria=additive"),
        ("execution.workers=2", "execution=.* workers means nothing with engine=inline"),
        ("distributions.k=8", r"m=8 .* needs the 9 most .* set distributions\.k to 9"),
        ("prompts.source='~nosuchuser/x'", "prompts.source=~nosuchuser/x does not exist"),
        ("drafter.path='~nosuchuser/x'", "drafter.path=~nosuchuser/x does not exist"),
        ("outputs='~nosuchuser/x'", "outputs='~nosuchuser/x': begins with ~ and no user"),
        ("prompts.source=./nope.jsonl", r"prompts.source=\./nope.jsonl does not exist"),
        ("device.threads=1000000", "device.threads=1000000 exceeds the .* processors"),
        ("targets.mini_large.label=mini-small", "label=mini-small is given to two targets"),
    ],
)
def test_what_cannot_succeed_is_one_line_before_any_work(override, message, tmp_path):
    with pytest.raises(PipelineError, match=message) as error:
        cli.run(mini(f"outputs={tmp_path}", override))
    lines = one_line(error.value).splitlines()
    assert len(lines) == 1 or override == "distributions.k=0"  # rules need more, too
    assert not list(tmp_path.rglob("*.parquet"))


BEYOND = ("../../x", "/etc/x", "..", "a/../../b", "a/.b", "a//b", "a/", "x" * 201)


@pytest.mark.parametrize(
    ("key", "goods", "bads"),
    [
        (
            "targets.local.revision",
            ("main", "refs/pr/12", "v1.0-rc.1", "a@b", "f" * 40, "x" * 200),
            (*BEYOND, ".", "a b", "a.lock", "a\x1b[31m", "a:b", ""),
        ),
        ("prompts.revision", ("main",), ("../../x",)),
    ],
)
def test_a_revision_names_no_other_file(key, goods, bads):
    """It becomes the name of a file of the hub's cache."""
    config = mini("target=local", "targets.local.path=owner/name")
    for good in goods:
        OmegaConf.update(config, key, good)
        settings_of(config)
    for bad in bads:
        OmegaConf.update(config, key, bad)
        with pytest.raises(PipelineError, match=rf"{key}=.*should be the name of a branch"):
            settings_of(config)


def test_all_wrong_values_are_said_at_once():
    config = mini("statistics.resamples=0", "+prompts.cuont=1", "solve.share=2", "~ask")
    with pytest.raises(PipelineError) as error:
        settings_of(config)
    keys = [re.split("[ =]", line)[0] for line in str(error.value).splitlines()]
    assert keys == ["prompts.cuont", "solve.share", "ask", "statistics.resamples"]


def test_the_report_has_the_name_of_its_study_and_of_a_model_of_ones_own():
    def name(*overrides):
        return report_name(settings_of(mini(*overrides)))

    own = ["target=local", "targets.local.path=/models/Mine"]
    assert name() == name("prompts.count=5") == "mini"
    assert name(*own) == "mini-Mine"
    assert name(*own, "study_name=five") == "five"


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "criteria has no rule"),
        ({"mine": {"rule": "additive", "t": 0.1}, "t": 0.2}, r"criteria.t=0.2 is neither"),
        ({"a": {"rule": "greedy"}, "b": [{"rule": "greedy"}]}, "greedy is given twice"),
        ({"mine": {"rule": "additive", "t": []}}, r"criteria.mine: t=\[\]: give a value, or"),
    ],
)
def test_bad_rules_are_refused(criteria, message):
    with pytest.raises(PipelineError, match=message):
        build_rules(criteria)


def planned(tmp_path, *overrides):
    return Study(config=mini(f"outputs={tmp_path}", *overrides)).tasks


def test_all_that_is_missing_is_said_at_once(tmp_path):
    own = ["target=local", "targets.local.path=./model", "distributions.k=8"]
    with pytest.raises(PipelineError) as error:
        cli.run(mini(*own, "drafter.path=/nowhere", f"outputs={tmp_path}"))
    lines = one_line(error.value).splitlines()
    wanted = ("distributions.k", "targets.local.path=./model", "drafter.path=/nowhere")
    assert [key in line for key, line in zip(wanted, lines, strict=True)] == [True] * 3


def test_keys_of_the_configuration_reach_the_keys_of_artifacts(tmp_path):
    """A draft length for all methods, and the temperature of the certificates."""
    default, one, three = (
        planned(tmp_path, "stage=decoding", f"decoding.draft_length={at}")["decoding"][0]
        for at in ("null", 1, 3)
    )
    assert len({task.key for task in (default, one, three)}) == 3
    assert {method.draft_length for method in methods_of(three)} == {3}
    plain = planned(tmp_path)
    for temperature, same in (("1.0", True), ("0.6", False)):
        tasks = planned(tmp_path, f"certificates.temperature={temperature}")
        assert tasks["distributions"][0].settings["certified_temperature"] == float(temperature)
        for stage in ("distributions", "certificates"):
            assert (tasks[stage][0].key == plain[stage][0].key) == same


@pytest.mark.thorough
def test_a_foreign_model_or_tokenizer_is_refused_only_where_it_is_needed(tmp_path):
    model = tiny.write_model(tmp_path / "model")
    wanted = ["target=local", f"targets.local.path={model}", "prompts.max_tokens=2000"]
    for stage in ("distributions", "run_lengths"):
        assert planned(tmp_path, *wanted, f"stage={stage}")[stage]
    message = r"^targets.local.path=.* and drafter.path=.*: their tokenizers .*drafter=none$"
    for stage in ("drafts", "decoding", "report"):
        with pytest.raises(PipelineError, match=message):
            cli.run(mini(*wanted, f"stage={stage}", f"outputs={tmp_path}"))
    assert planned(tmp_path, *wanted, "stage=report", "drafter=none")["report"]
    assert not list(tmp_path.rglob("*.parquet"))


OWN = ["study=mini", "+criteria.mine={_target_: own_rule_a.Mine}"]


@pytest.mark.parametrize(
    ("arguments", "file", "content", "message"),
    [
        (["criteria=x"], "criteria/x.yaml", b"rule: [a\nt: 1\n", "/criteria/x.yaml"),
        (["study=mini"], "study/mini.yaml", b"study: mini\n", "mini.yaml has the name of one of"),
        (OWN, "own_rule_a.py", b"def f(:\n", "own_rule_a.Mine cannot be imported: SyntaxError"),
    ],
)  # fmt: skip
def test_a_wrong_file_or_rule_is_one_line(arguments, file, content, message, tmp_path, monkeypatch):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["--config-dir", str(tmp_path), "study=mini", *arguments, f"outputs={tmp_path}"]
    said = pipeline(*given, check=False).stderr
    assert said.startswith("error: ")
    assert message in said
    assert "\n" not in said


def test_files_and_own_directories_of_a_command_line(tmp_path, monkeypatch):
    """Nor is an address with a query an override, or an existing file whose name is like one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k=5.jsonl").touch()
    long = f"solve.rules=[{','.join(['additive'] * 100)}]"
    words = ["k=5.jsonl", "http://h/?a=b", "study=mini", "+a.b=1", "~drafter", long, "x-1/k=5"]
    assert files_and_overrides([*words, "--config-dir", str(tmp_path)]) == (
        ["k=5.jsonl", "http://h/?a=b", "x-1/k=5"],
        ["study=mini", "+a.b=1", "~drafter", long, f"--config-dir={tmp_path}"],
    )
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text(
        "# @package _global_\ndefaults: [mini, _self_]\nprompts: {count: 0}\n"
    )
    given = ["--config-dir", str(tmp_path), "study=mine", f"outputs={tmp_path}"]
    with pytest.raises(SystemExit, match=r"prompts\.count=0: should be"):  # it is found
        solve.main(given)
    with pytest.raises(PipelineError, match=r"--config-dir .*nothing is no directory"):
        composed(["--config-dir", f"{tmp_path}/nothing", "study=mini"])
