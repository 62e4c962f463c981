"""Every configuration composes; wrong values fail before any work and say what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from conf import schema
from pipeline import cli
from pipeline.errors import PipelineError
from pipeline.paths import CONF
from pipeline.rules import build_rules

GROUPS = ("study", "target", "drafter", "prompts", "criteria", "decoding", "device")
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def settings(*overrides: str) -> schema.Config:
    found = OmegaConf.to_object(compose("config", list(overrides)))
    assert isinstance(found, schema.Config)
    return found


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    added = "+target" if group == "target" else group
    extra = {
        ("target", "local"): ["targets.local.path=x"],
        ("drafter", "local"): ["drafter.path=x"],
        ("prompts", "default"): ["prompts.source=x"],
    }
    found = settings(f"{added}={option}", *extra.get((group, option), []))
    schema.check(found)
    assert build_rules(found.criteria)


def test_studies() -> None:
    mini, paper = settings(), settings("study=paper")
    assert (mini.study, paper.study) == ("mini", "paper")
    assert [target.label for target in mini.targets.values()] == ["mini-large", "mini-small"]
    paths = [target.path for target in paper.targets.values()]
    assert paths == ["Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"]
    assert (paper.prompts.count, paper.prompts.min_tokens) == (500, 64)
    assert paper.distributions.steps == 128
    assert (mini.device.name, paper.device.name) == ("cpu", "cuda")
    assert (mini.distributions.temperature > 0, paper.distributions.temperature) == (True, 0)
    assert paper.prompts.source == "HuggingFaceH4/ultrachat_200k"
    assert len(build_rules(mini.criteria)) == len(build_rules(paper.criteria)) == 40


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distributions.k=0", "distributions.k=0 is not allowed: give an integer of at least 1"),
        ("distributions.temperature=-1", "distributions.temperature=-1.0 is not allowed"),
        ("prompts.count=0", "prompts.count=0"),
        ("targets.mini_large.dtype=int8", "targets.mini_large.dtype=int8 is not allowed: give one"),
        ("run_lengths.eps=[]", "run_lengths.eps"),
        ("device.name=tpu", "device.name=tpu is not allowed: give auto, cpu, cuda"),
        ("stage=nothing", "stage=nothing is not allowed: give one of prompts"),
    ],
)
def test_out_of_range_values_name_key_value_and_range(override: str, message: str) -> None:
    with pytest.raises(schema.ConfigError) as error:
        schema.check(settings(override))
    assert message in str(error.value)


@pytest.mark.parametrize("override", ["distributions.kk=3", "distributions.k=many", "prompts=none"])
def test_typos_fail_at_composition(override: str) -> None:
    with pytest.raises(Exception, match=r"kk|many|none"):
        settings(override)


def test_missing_values_are_named() -> None:
    with pytest.raises(Exception, match=r"targets\.local\.path"):
        settings("+target=local")


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "give one rule"),
        ({"rule": "additve", "t": 0.1}, "additve"),
        ({"rule": "additive", "t": 2.0}, "t"),
        ({"rule": "additive", "s": 0.1}, "s"),
        ({"rules": [{"rule": "greedy"}, {"rule": "greedy"}]}, "twice"),
    ],
)
def test_bad_rules_are_refused(criteria: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build_rules(criteria)


def test_k_too_small_for_a_rule_is_refused_before_any_work(tmp_path: Path) -> None:
    config = compose("config", ["distributions.k=8", f"outputs={tmp_path}"])
    with pytest.raises(PipelineError, match=r"distributions\.k=8 is too small for .* m=8"):
        cli.prepare(config)
    assert not list(tmp_path.iterdir())
