"""Models that several stages run are loaded once, and never more than one target at a time."""

import pytest

from benchmarks import robustness
from pipeline.models import loading
from pipeline.models.kept import kept_models, load_once, release_models
from pipeline.study import Study


class Spec(str):
    """A key, and a path behind it."""

    @property
    def key(self):
        return self.partition("=")[0]


@pytest.fixture
def loaded():
    """The specs in the order in which they are loaded; a function that loads one once."""
    seen = []

    def load(spec):
        seen.append(str(spec))
        return object()

    return seen, lambda text: load_once(Spec(text), load)


def test_within_the_context_a_pair_is_loaded_once(loaded):
    seen, once = loaded
    with kept_models():
        target = once("targets.a=x")
        drafter = once("drafter=y")
        assert once("targets.a=x") is target
        assert once("drafter=y") is drafter
    assert seen == ["targets.a=x", "drafter=y"]


def test_another_target_takes_the_place_of_the_pair(loaded):
    seen, once = loaded
    with kept_models():
        for text in ("targets.a=x", "drafter=y", "targets.b=x", "drafter=y", "targets.b=x"):
            once(text)
    assert seen == ["targets.a=x", "drafter=y", "targets.b=x", "drafter=y"]


def test_the_same_key_with_other_settings_is_another_model(loaded):
    seen, once = loaded
    with kept_models():
        once("targets.a=x")
        once("targets.a=z")
    assert seen == ["targets.a=x", "targets.a=z"]


@pytest.mark.parametrize("forget", ["outside", "released", "ended"])
def test_nothing_is_kept_otherwise(forget, loaded):
    seen, once = loaded
    if forget == "outside":
        once("targets.a=x")
        once("targets.a=x")
    elif forget == "released":
        with kept_models():
            once("targets.a=x")
            release_models()
            once("targets.a=x")
    else:
        for _ in range(2):
            with kept_models():
                once("targets.a=x")
    assert seen == ["targets.a=x"] * 2


def test_one_command_loads_target_and_drafter_once(tmp_path, monkeypatch):
    overrides = robustness.tiny_study(tmp_path)
    seen = []
    load = loading._load
    monkeypatch.setattr(loading, "_load", lambda spec: seen.append(spec.key) or load(spec))
    study = Study(*overrides, f"outputs='{tmp_path / 'outputs'}'")
    study.make("acceptance")  # after distributions, by the target, and drafts, by both
    assert seen == ["targets.local", "drafter"]
