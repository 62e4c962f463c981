"""The charts of the page as Vega-Lite specifications, made with altair.

A specification names its data and holds none: the page's script fills the names for what the
reader chose. It names no colour: the page's style does, on light and on dark ground.
"""

from __future__ import annotations

from typing import Any

import altair as alt

Spec = dict[str, Any]
PERCENT, SHORT = "%", ".3~g"


def charts() -> dict[str, Spec]:
    """Return every chart by its name."""
    return {"plane": plane(), "lengths": lengths(), "survival": survival(), "speed": speed()}


def plane() -> Spec:
    """All rules: what they accept against the target probability that they give up."""
    base = alt.Chart(alt.NamedData("rules")).encode(
        x=alt.X("given_up:Q", title=["target probability given up a step", "(square-root axis)"])
        .scale(type="sqrt", nice=False)
        .axis(format=SHORT, tickCount=5),
        y=alt.Y("accepted:Q", title="accepted, share of steps")
        .scale(zero=False)
        .axis(format=PERCENT),
        color=_by("family"),
        tooltip=_tips(
            title="rule",
            accepted_text="accepted",
            certified_text="certified for this drafter",
            departure_text="departs",
            given_up_text="probability given up",
        ),
    )
    bars = base.mark_rule(opacity=0.35).encode(y="low:Q", y2="high:Q")
    points = base.mark_point(shape="circle", filled=True, opacity=0.9).encode(
        size=alt.condition("datum.name", alt.value(170), alt.value(60))
    )
    # two names at most: the rule that is chosen and the one beside it
    names = base.mark_text(
        align=alt.expr("datum.right ? 'right' : 'left'"),
        dx=alt.expr("datum.right ? -10 : 10"),
        dy=alt.expr("datum.second ? 16 : -16"),
        fontWeight="bold",
        fontSize=12,
    ).encode(text="name:N", color=alt.value("currentColor"))
    return _finished(bars + points + names, 340)


def lengths() -> Spec:
    """Tokens a call over the length of drafts: certified, and of this drafter."""
    base = alt.Chart(alt.NamedData("lengths")).encode(
        x=alt.X("length:Q", title="draft length γ").axis(tickMinStep=1),
        color=_by("kind"),
        tooltip=_tips(kind="of", length="γ", tokens="tokens a call", low="from", high="to"),
    )
    band = base.mark_area(opacity=0.18).encode(
        y=alt.Y("low:Q", title="tokens a call").scale(zero=False), y2="high:Q"
    )
    line = base.mark_line(point=True).encode(
        y="tokens:Q", strokeDash=alt.StrokeDash("kind:N", sort=None, legend=None)
    )
    return _finished(band + line, 280)


def survival() -> Spec:
    """Share of steps whose certificate exceeds eps, rule by rule."""
    base = alt.Chart(alt.NamedData("curves")).encode(
        x=alt.X("eps:Q", title="ε (nats)").scale(nice=False, zero=True),
        color=_by("rule"),
        tooltip=_tips(rule="rule", eps="ε", share="R > ε", low="from", high="to"),
    )
    scale = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.18).encode(
        y=alt.Y("low:Q", title="share of steps with R > ε").scale(scale).axis(format=PERCENT),
        y2="high:Q",
    )
    line = base.mark_line().encode(
        y="share:Q", strokeDash=alt.StrokeDash("rule:N", sort=None, legend=None)
    )
    marked = alt.Chart(alt.NamedData("eps")).encode(x="x:Q")
    level = marked.mark_rule(strokeDash=[6, 3], opacity=0.75)
    text = marked.mark_text(align="left", baseline="top", dx=4, fontSize=11)
    return _finished(band + line + level + text.encode(text="text:N", y=alt.value(2)), 320)


def speed() -> Spec:
    """Measured speed-ups of all methods, with intervals over prompts."""
    base = alt.Chart(alt.NamedData("speed")).encode(
        y=alt.Y("name:N", sort=None, title=None),
        color=_by("drafter"),
        tooltip=_tips(name="method", speedup="speed-up", low="from", high="to", tokens="a call"),
    )
    value = alt.X("speedup:Q", title="times as fast as the target alone").scale(zero=False)
    bars = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q").scale(zero=False), x2="high:Q")
    points = base.mark_point(shape="circle", filled=True, size=55).encode(x=value)
    alone = alt.Chart(alt.NamedData("alone")).mark_rule(strokeDash=[4, 3], opacity=0.7)
    return _finished(bars + points + alone.encode(x="x:Q"), 0)  # a row each


def _by(field: str) -> alt.Color:
    """Colour by a category, its values in the order in which they come, from the page's style."""
    legend = alt.Legend(symbolType="circle", title=None)
    return alt.Color(f"{field}:N", sort=None, legend=legend)


def _tips(**titles: str) -> list[alt.Tooltip]:
    """Return what is said of the point below the pointer: texts as they are, numbers short."""
    texts = {"title", "kind", "rule", "name"}
    return [
        alt.Tooltip(f"{name}:N", title=title)
        if name in texts or name.endswith("_text")
        else alt.Tooltip(f"{name}:Q", title=title, format=SHORT)
        for name, title in titles.items()
    ]


def _finished(chart: alt.LayerChart, height: int) -> Spec:
    """Return the specification of a chart as wide as its place; height 0: as its rows need."""
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    # what altair adds of its own look, the page's style decides
    return {name: value for name, value in spec.items() if name != "config"}
