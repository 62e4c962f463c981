"""The charts of the page as Vega-Lite specifications, made with altair.

A specification names its data and holds none: the page's script fills the names for what the
reader chose. It names no colour but those of categories, which are read on light and dark ground.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from ..report.style import BLUE, GREEN, ORANGE, PINK, PURPLE, SKY, VERMILION

Spec = dict[str, Any]
HUES = [BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, PURPLE, "#8C8C8C"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "stroke", "wedge"]
KINDS = {"accepted": ORANGE, "certified": BLUE}
EPS, SHARE, TOKENS = "ε (nats)", "share of steps", "tokens a call"
PERCENT, SHORT = "%", ".3~g"
HEIGHT = 300


def charts() -> dict[str, Spec]:
    """Return every chart by its name."""
    return {
        "plane": plane(),
        "dial": dial(),
        "lengths": lengths(),
        "survival": survival(),
        "top": top(),
        "distance": distance(),
        "profile": profile(),
        "speed": speed(),
        "published": published(),
    }


def plane() -> Spec:
    """All rules: what they gain against how often they depart from the target's first choice."""
    base = alt.Chart(alt.NamedData("rules")).encode(
        x=alt.X("departure:Q", title="steps that depart from the target's first choice").axis(
            format=PERCENT, tickCount=6
        ),
        y=alt.Y("tokens:Q", title=f"{TOKENS}, drafts of any length").scale(zero=False),
        color=_by("family", HUES),
        tooltip=[
            alt.Tooltip("title:N", title="rule"),
            alt.Tooltip("tokens_text:N", title=TOKENS),
            alt.Tooltip("departure_text:N", title="departs"),
            alt.Tooltip("given_up_text:N", title="probability given up"),
            alt.Tooltip("accepted_text:N", title="accepted"),
            alt.Tooltip("certified_text:N", title="certified"),
        ],
    )
    bars = base.mark_rule(opacity=0.35).encode(y="low:Q", y2="high:Q")
    points = base.mark_point(filled=True, opacity=0.9).encode(
        shape=alt.Shape("family:N", legend=None).scale(range=SHAPES),
        size=alt.condition("datum.marked", alt.value(170), alt.value(60)),
    )
    names = base.mark_text(
        align=alt.expr("datum.side > 0 ? 'left' : 'right'"),
        dx=alt.expr("9 * datum.side"),
        dy=alt.expr("-datum.lift"),
        fontWeight="bold",
        fontSize=12,
    ).encode(text="name:N", color=alt.value("currentColor"))
    return _finished(bars + points + names, 360)


def dial() -> Spec:
    """One measure of a rule along the settings of one parameter."""
    base = alt.Chart(alt.NamedData("dial")).encode(
        x=alt.X("setting:N", sort=None, title="setting, from strict to relaxed").axis(labelAngle=0),
        y=alt.Y("value:Q", title=None)
        .scale(zero=False)
        .axis(labelExpr="datum.value > 1 ? datum.label : format(datum.value, '.2~%')"),
        tooltip=[
            alt.Tooltip("title:N", title="rule"),
            alt.Tooltip("text:N", title="value, and interval over prompts"),
        ],
    )
    band = base.mark_area(opacity=0.2, color=BLUE).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(color=BLUE, point=alt.OverlayMarkDef(color=BLUE, filled=True, size=50))
    return _finished(band + line)


def lengths() -> Spec:
    """Tokens a call over the length of drafts: certified, and of this drafter."""
    base = alt.Chart(alt.NamedData("lengths")).encode(
        x=alt.X("length:Q", title="draft length γ").axis(tickMinStep=1, format="d"),
        y=alt.Y("tokens:Q", title=TOKENS).scale(zero=False),
        color=_by("kind", [BLUE, ORANGE]),
        tooltip=[
            alt.Tooltip("kind:N", title="kind"),
            alt.Tooltip("length:Q", title="γ"),
            alt.Tooltip("tokens:Q", title=TOKENS, format=".3f"),
            alt.Tooltip("low:Q", title="from", format=".3f"),
            alt.Tooltip("high:Q", title="to", format=".3f"),
        ],
    )
    band = base.mark_area(opacity=0.18).encode(y="low:Q", y2="high:Q")
    line = base.mark_line(point=True).encode(
        strokeDash=alt.StrokeDash("kind:N", sort=None, legend=None)
    )
    return _finished(band + line)


def survival() -> Spec:
    """Share of steps whose certificate exceeds eps, rule by rule."""
    base = alt.Chart(alt.NamedData("curves")).encode(
        x=alt.X("eps:Q", title=EPS).scale(nice=False, zero=True), color=_by("rule", HUES)
    )
    tips = [
        alt.Tooltip("rule:N", title="rule"),
        alt.Tooltip("eps:Q", title="ε", format=SHORT),
        alt.Tooltip("share:Q", title="R > ε", format=".1%"),
        alt.Tooltip("low:Q", title="from", format=".1%"),
        alt.Tooltip("high:Q", title="to", format=".1%"),
    ]
    scale = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.18).encode(
        y=alt.Y("low:Q", title="share of steps with R > ε").scale(scale).axis(format=PERCENT),
        y2="high:Q",
        tooltip=tips,
    )
    line = base.mark_line().encode(
        y="share:Q", strokeDash=alt.StrokeDash("rule:N", sort=None, legend=None), tooltip=tips
    )
    return _finished(band + line + _level("ceilings", [2, 3]) + _level("eps"), 340)


def top() -> Spec:
    """How the two largest probabilities of the target are distributed."""
    chart = alt.Chart(alt.NamedData("top")).mark_line(interpolate="step-after", strokeWidth=2)
    return _finished(
        chart.encode(
            x=alt.X("probability:Q", title="probability of the first (p₀) and second (p₁) choice"),
            y=alt.Y("share:Q", title="share of steps").axis(format=PERCENT),
            color=_by("kind", [BLUE, VERMILION]),
            strokeDash=alt.StrokeDash("kind:N", legend=None),
            tooltip=[
                alt.Tooltip("kind:N", title="of"),
                alt.Tooltip("probability:Q", title="from", format=SHORT),
                alt.Tooltip("share:Q", title=SHARE, format=".1%"),
            ],
        ),
        220,
    )


def distance() -> Spec:
    """Distribution of the drafter's KL over the steps."""
    chart = alt.Chart(alt.NamedData("distance")).encode(
        x=alt.X("kl:Q", title="KL(p‖q) of a step (nats, logarithmic axis)")
        .scale(type="log", clamp=True)
        .axis(format=SHORT, tickCount=6, grid=False),
        y=alt.Y("share:Q", title="share of steps at most this far").axis(format=PERCENT),
        tooltip=[
            alt.Tooltip("kl:Q", title="KL", format=SHORT),
            alt.Tooltip("share:Q", title=SHARE, format=".1%"),
        ],
    )
    return _finished(chart.mark_line(color=BLUE) + _level("eps"), 240)


def profile() -> Spec:
    """Accepted and certified along the answer, or by the margin of the target."""
    base = alt.Chart(alt.NamedData("profile")).encode(
        x=alt.X("x:Q", title="position, or decile of the margin").axis(tickCount=8),
        y=alt.Y("share:Q", title=SHARE).scale(domain=[0, 1]).axis(format=PERCENT),
        color=alt.Color("kind:N", title=None).scale(domain=list(KINDS), range=list(KINDS.values())),
        strokeDash=alt.StrokeDash("kind:N", legend=None),
        tooltip=[
            alt.Tooltip("kind:N", title="steps"),
            alt.Tooltip("bin:N", title="where"),
            alt.Tooltip("share:Q", title=SHARE, format=".1%"),
            alt.Tooltip("steps:Q", title="of so many steps"),
        ],
    )
    return _finished(base.mark_line(point=True), 240)


def speed() -> Spec:
    """Measured speed-ups of all methods, with intervals over prompts."""
    base = alt.Chart(alt.NamedData("speed")).encode(
        y=alt.Y("name:N", sort=None, title=None).axis(labelLimit=260),
        color=_by("drafter", HUES),
        tooltip=[
            alt.Tooltip("name:N", title="method"),
            alt.Tooltip("speedup:Q", title="speed-up", format=".2f"),
            alt.Tooltip("low:Q", title="from", format=".2f"),
            alt.Tooltip("high:Q", title="to", format=".2f"),
            alt.Tooltip("tokens:Q", title=TOKENS, format=".2f"),
        ],
    )
    value = alt.X("speedup:Q", title="times as fast as the target alone").scale(zero=False)
    bars = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q").scale(zero=False), x2="high:Q")
    points = base.mark_point(filled=True, size=55).encode(x=value)
    alone = alt.Chart(alt.NamedData("alone")).mark_rule(strokeDash=[4, 3], opacity=0.7)
    return _finished(bars + points + alone.encode(x="x:Q"), {"step": 17})


def published() -> Spec:
    """Our numbers beside those that the paper prints."""
    base = alt.Chart(alt.NamedData("published")).encode(
        y=alt.Y("name:N", sort=None, title=None).axis(labelLimit=220),
        tooltip=[
            alt.Tooltip("name:N", title="row"),
            alt.Tooltip("kind:N", title="kind"),
            alt.Tooltip("value:Q", title="value", format=".3f"),
            alt.Tooltip("low:Q", title="from", format=".3f"),
            alt.Tooltip("high:Q", title="to", format=".3f"),
        ],
    )
    color = _by("kind", [BLUE, VERMILION])
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="nats"), x2="high:Q", color=color
    )
    points = base.mark_point(filled=True, size=70).encode(
        x="value:Q",
        color=color,
        shape=alt.Shape("kind:N", sort=None, legend=None).scale(range=SHAPES),
    )
    return _finished(bars + points, {"step": 22})


def _by(field: str, colors: list[str]) -> alt.Color:
    """Colour by a category, its values in the order in which they come."""
    return alt.Color(f"{field}:N", sort=None, title=None).scale(range=colors)


def _level(name: str, dash: list[int] | None = None) -> alt.LayerChart:
    """Return vertical lines at the values `x` of a data set, with the text beside them."""
    base = alt.Chart(alt.NamedData(name)).encode(x="x:Q")
    line = base.mark_rule(strokeDash=dash or [6, 3], opacity=0.75)
    text = base.mark_text(align="left", baseline="top", dx=4, fontSize=11)
    return alt.LayerChart(layer=[line, text.encode(text="text:N", y=alt.value(2))])


def _finished(chart: alt.Chart | alt.LayerChart, height: Any = HEIGHT) -> Spec:
    """Return the specification of a chart as wide as its place on the page."""
    sized = chart.properties(width="container", height=height)
    spec: Spec = sized.to_dict()
    # what altair adds of its own look, the page's style decides
    return {name: value for name, value in spec.items() if name != "config"}
