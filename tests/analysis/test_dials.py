"""Dials: which lists of values are one, from strict to relaxed."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.rules.dials import build_dial


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"rule": "additive", "t": [0.5, 0.1]}, "from strict to relaxed, t grows"),
        ({"rule": "additive", "t": [0.1, 0.1]}, "t grows"),
        ({"rule": "multiplicative", "alpha": [0.1, 0.5, 1.0]}, "alpha falls"),
        ({"rule": "mars", "theta": [0.8, 0.9]}, "theta falls"),
        ({"rule": "tree", "m": [4, 2]}, "m grows"),
        ({"rule": "topm_additive", "m": 2, "t": 0.1, "convention": ["rank", "paper"]}, "numbers"),
        ({"rule": "additive", "t": [0.1]}, "at least two numbers"),
        ({"rule": "additive", "t": 0.1}, "one key a list"),
        ({"rule": "topm_additive", "m": [2, 4], "t": [0.1, 0.2]}, "one key a list"),
    ],
)
def test_what_does_not_turn_one_way_is_refused(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_dial(mapping)


def test_dials_turn_from_strict_to_relaxed() -> None:
    assert build_dial({"rule": "multiplicative", "alpha": [1.0, 0.5]}).parameter == "alpha"
    assert build_dial({"rule": "typical", "eps0": [0.2, 0.05], "delta0": 0.3}).parameter == "eps0"
    dial = build_dial({"rule": "tree", "m": [1, 2, 8]})
    assert [dial.value(rule) for rule in dial.rules] == [1, 2, 8]
