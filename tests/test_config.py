"""Every configuration composes; wrong values fail before any work and say what is allowed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from pipeline import cli
from pipeline.config import composed, files_and_overrides, report_name, settings_of
from pipeline.criteria import build_rules
from pipeline.errors import PipelineError, one_line
from pipeline.paths import CONF, ROOT
from pipeline.study import Study
from tests.pipeline import tiny

GROUPS = ("study", "target", "drafter", "prompts", "criteria", "decoding")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


def mini(*overrides: str) -> DictConfig:
    return composed(["study=mini", *overrides])


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    given = {"target": "+target", "study": "study"}.get(group, group)
    config = mini(f"{given}={option}")
    for key in OmegaConf.missing_keys(without_labels(config)):
        assert key.endswith((".path", ".source")), key
        OmegaConf.update(config, key, "x")
    assert build_rules(settings_of(config).criteria)


def without_labels(config: DictConfig) -> DictConfig:
    """Return a configuration without the values that are made from others."""
    plain = OmegaConf.to_container(config)
    assert isinstance(plain, dict)
    for model in [*plain["targets"].values(), plain["drafter"] or {}]:
        model["label"] = "x"
    return OmegaConf.create(plain)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distributions.k=0", "distributions.k=0: should be greater than or equal to 1"),
        ("distributions.k='1'", "distributions.k='1': should be a valid integer"),
        ("distributions.k=true", "distributions.k=True: should be a valid integer"),
        ("distributions.k=1.0", "distributions.k=1.0: should be a valid integer"),
        ("statistics.confidence='0.9'", "statistics.confidence='0.9': should be a valid number"),
        ("run_lengths.eps=[0.1,nan]", "run_lengths.eps.1=nan: should be a finite number"),
        ("run_lengths.eps=[0.1,0.1]", r"run_lengths.eps=\[0.1, 0.1\]: should have no value twice"),
        ("targets.mini_large.label=../x", r"label='../x': should be a name that begins"),
        (f"drafter.label='{'ä' * 51}'", "drafter.label=.* at most 100 bytes"),
        ("outputs=' '", "outputs=' ': should not be empty"),
        ("device.name=tpu", "device.name='tpu': should be auto, cpu, cuda or cuda:N"),
        ("device=auto", "device='auto': has the keys name, threads, batch"),
        ("stage=certificate", r"stage='certificate': .*\(did you mean certificates\?\)"),
        ("targets.mini_large.dtype=null", "targets.mini_large.dtype=None: should be 'float32', "),
        (
            "distributions.kk=3",
            r"distributions.kk is not known \(did you mean k\?\): give one of k",
        ),
        ("+distributions.kk=3", r"distributions.kk is not known \(did you mean k\?\): give one of"),
        ("statistcs.seed=1", r"statistcs is not known \(did you mean statistics\?\)"),
        ("~distributions", "distributions must be given"),
        ("+target=local", r"targets\.local\.path must be given"),
        ("note=${nothing}", "note: Interpolation key 'nothing' not found"),
        ("prompts=none", "there is no prompts=none: give one of default, mini"),
        ("study=nini", r"there is no study=nini \(did you mean mini\?\)"),
        ("criteria=[paper,adaptive]", r"there is no criteria=adaptive.*: give one of absolute, "),
        ("drafter=/models/mine", "drafter=local drafter.path=PATH for a model of your own"),
        ("drafter=null", "must be a string or a list.* drafter=null"),
        ("study=[1]", r"study=\[1\]"),
        ("outputs=o'brien", "o'brien.* can't be read: .*quoted: \"key='VALUE'\""),
        ("study==mini", "'study==mini' can't be read"),
        ("criteria={rule: additive", "'criteria={rule: additive' can't be read"),
        ("criteria.t=0.1,0.2", "'criteria.t=0.1,0.2': give -m as well"),
        ("criteria.t=0.1", "criteria.t is not known: .*criteria=additive or .*topm_additive"),
        ("drafter.head.depths=2", "drafter.head.depths is not known"),
        ("execution.workers=2", "execution=.* workers means nothing with engine=inline"),
        ("distributions.k=8", r"m=8 .* needs the 9 most .* set distributions\.k to 9"),
        ("prompts.max_tokens=63", "min_tokens=64 exceeds .*=63"),
        ("prompts.source=./nope.jsonl", r"prompts.source=\./nope.jsonl does not exist"),
        ("drafter.path=a--b/c", "drafter.path=a--b/c does not exist"),
        ("device.threads=1000000", "device.threads=1000000 exceeds the .* processors"),
        ("targets.mini_large.label=mini-small", "label=mini-small is given to two targets"),
    ],
)
def test_what_cannot_succeed_is_one_line_before_any_work(
    override: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=message) as error:
        cli.run(mini(f"outputs={tmp_path}", override))
    lines = one_line(error.value).splitlines()
    assert len(lines) == 1 or override == "distributions.k=0"  # rules need more, too
    assert not list(tmp_path.rglob("*.parquet"))


def test_all_wrong_values_are_said_at_once() -> None:
    config = mini("statistics.resamples=0", "+prompts.cuont=1", "solve.share=2", "~ask")
    with pytest.raises(PipelineError) as error:
        settings_of(config)
    keys = [re.split("[ =]", line)[0] for line in str(error.value).splitlines()]
    assert keys == ["prompts.cuont", "solve.share", "ask", "statistics.resamples"]


def test_the_report_has_the_name_of_its_study_and_of_a_model_of_ones_own() -> None:
    def name(*overrides: str) -> str:
        return report_name(settings_of(mini(*overrides)))

    own = ["target=local", "targets.local.path=/models/Mine"]
    assert name() == name("prompts.count=5") == "mini"
    assert name(*own) == "mini-Mine"
    assert name(*own, "study_name=five") == "five"


def test_names_can_stand_in_files_and_on_one_line() -> None:
    config = mini()
    OmegaConf.update(config, "targets", {"a\nb": config.targets.mini_small}, force_add=True)
    with pytest.raises(PipelineError, match=r"^targets\.'a\\nb'='a\\nb': should be a name.*bytes$"):
        settings_of(config)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "criteria has no rule"),
        ([], "give rules by name"),
        ({"rule": "additive", "t": 0.1}, "criteria.rule=additive is neither a rule"),
        ({"mine": "greedy"}, "criteria.mine=greedy is neither"),
        ({"mine": {"rule": "additve"}}, r"criteria.mine: rule='additve' .*did you mean additive"),
        ({"a": {"rule": "greedy"}, "b": [{"rule": "greedy"}]}, "greedy is given twice"),
        ({"mine": {"rule": "additive", "t": []}}, r"criteria.mine: t=\[\]: give a value, or"),
    ],
)
def test_bad_rules_are_refused(criteria: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_rules(criteria)


def planned(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    return Study(config=mini(f"outputs={tmp_path}", *overrides)).tasks


def test_all_that_is_wrong_is_said_at_once_before_torch_is_imported(tmp_path: Path) -> None:
    own = ["target=local", "targets.local.path=./model", "prompts.min_tokens=400"]
    code = (
        "import sys\nfrom pipeline import cli\ntry: cli.main()\n"
        "except SystemExit as end: print(end); print('torch' in sys.modules)"
    )
    given = ["study=mini", *own, "drafter.path=/nowhere", f"outputs={tmp_path}"]
    command = [sys.executable, "-c", code, *given]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    *lines, torch = ended.stdout.splitlines()
    assert torch == "False"
    wanted = ["error: prompts.min_tokens=400 exceeds prompts.max_tokens=384: no prompt has",
              "error: targets.local.path=./model does not exist, and is no hub id",
              "error: drafter.path=/nowhere does not exist"]  # fmt: skip
    for line, begin in zip(lines, wanted, strict=True):
        assert line.startswith(begin), ended.stdout


def test_a_draft_length_for_all_methods_has_an_artifact_of_its_own(tmp_path: Path) -> None:
    default, one, three = (
        planned(tmp_path, "stage=decoding", f"decoding.draft_length={at}")["decoding"][0]
        for at in ("null", 1, 3)
    )
    assert len({task.key for task in (default, one, three)}) == 3
    assert {method.draft_length for method in three.runtime.methods} == {3}


@pytest.mark.parametrize("option", [option for group, option in OPTIONS if group == "decoding"])
def test_every_choice_of_methods_can_be_scored(option: str, tmp_path: Path) -> None:
    if option != "settings":  # which has no methods of its own
        nodes = planned(tmp_path, f"decoding={option}", "stage=accuracy")
        assert nodes["accuracy"][0].runtime.methods


def test_distributions_know_the_temperature_of_the_certificates(tmp_path: Path) -> None:
    def found(*overrides: str) -> tuple[Any, Any]:
        nodes = planned(tmp_path, *overrides)
        return nodes["distributions"][0], nodes["certificates"][0]

    plain, certified = found()
    for temperature, same in (("1.0", True), ("0.6", False)):
        dump, certificates = found(f"certificates.temperature={temperature}")
        assert dump.settings["certified_temperature"] == float(temperature)
        assert (dump.key == plain.key) == same
        assert (certificates.key == certified.key) == same


@pytest.mark.thorough
def test_a_foreign_model_or_tokenizer_is_refused_only_where_it_is_needed(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model")
    wanted = ["target=local", f"targets.local.path={model}", "prompts.max_tokens=2000"]
    for stage in ("prompts", "distributions", "certificates", "run_lengths"):
        assert planned(tmp_path, *wanted, f"stage={stage}")[stage]
    message = r"^targets.local.path=.* and drafter.path=.*: their tokenizers .*drafter=none$"
    for stage in ("drafts", "acceptance", "decoding", "report"):
        with pytest.raises(PipelineError, match=message):
            cli.run(mini(*wanted, f"stage={stage}", f"outputs={tmp_path}"))
    assert planned(tmp_path, *wanted, "stage=report", "drafter=none")["report"]
    (model / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(PipelineError, match=r"^targets.local.path=.*: MambaForCausalLM takes no k"):
        cli.run(mini(*wanted, "drafter=none", "stage=certificates", f"outputs={tmp_path}"))
    assert not list(tmp_path.rglob("*.parquet"))


OWN = ["study=mini", "+criteria.mine={_target_: own_rule_a.Mine}"]


@pytest.mark.parametrize(
    ("arguments", "file", "content", "message"),
    [
        (["criteria=x"], "criteria/x.yaml", b"rule: [a\nt: 1\n", "/x.yaml is no YAML in UTF-8"),
        (["criteria=x"], "criteria/x.yaml", b"rule: \xfc\n", "criteria/x.yaml is no YAML in UTF-8"),
        (["criteria=x"], "criteria/x.yaml", b"defaults: greedy\n", "defaults must be a list"),
        (["criteria=x"], "criteria/x.yaml", b"defaults: [x, _self_]\n", "RecursionError"),
        (["study=mini"], "study/mini.yaml", b"study: mini\n", "mini.yaml has the name of one of"),
        (OWN, "own_rule_a.py", b"def f(:\n", "own_rule_a.Mine cannot be imported: SyntaxError"),
    ],
)  # fmt: skip
def test_a_wrong_file_or_rule_is_one_line(
    arguments: list[str], file: str, content: bytes, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["--config-dir", str(tmp_path), "study=mini", *arguments, f"outputs={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["pipeline", *given])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert str(end.value).startswith("error: ")
    assert message in str(end.value)
    assert "\n" not in str(end.value)


def test_files_of_a_command_line_are_no_overrides(tmp_path: Path) -> None:
    """Nor are an address with a query, or an existing file whose name is like an override."""
    answers = tmp_path / "k=5.jsonl"
    answers.touch()
    long = f"solve.rules=[{','.join(['additive'] * 100)}]"
    words = [str(answers), "http://h/?a=b", "study=mini", "+a.b=1", "~drafter", long, "x-1/k=5"]
    own = tmp_path / "own"
    own.mkdir()
    assert files_and_overrides([*words, "--config-dir", str(own)]) == (
        [str(answers), "http://h/?a=b", "x-1/k=5"],
        ["study=mini", "+a.b=1", "~drafter", long, f"--config-dir={own}"],
    )


def test_own_files_reach_every_command(tmp_path: Path) -> None:
    """A study of one's own, found by the range that its value leaves."""
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text(
        "# @package _global_\ndefaults: [mini, _self_]\nprompts: {count: 0}\n"
    )
    given = [f"--config-dir={tmp_path}", "study=mine", f"outputs={tmp_path}"]
    for name, first in {
        "solve": [], "ask": ["http://127.0.0.1:1"], "check_engine": ["a.jsonl"],
    }.items():  # fmt: skip
        for words in ([*first, *given], [*first, "--config-dir", str(tmp_path), *given[1:]]):
            with pytest.raises(SystemExit, match=r"prompts\.count=0: should be"):
                import_module(f"pipeline.{name}").main(words)
    with pytest.raises(PipelineError, match=r"--config-dir .*nothing is no directory"):
        composed(["--config-dir", f"{tmp_path}/nothing", "study=mini"])
