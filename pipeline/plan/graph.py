"""The graph: which stages there are, what each is made from, and what determines it.

`plan` turns a configuration into nodes; a node is one artifact to be. Bump a stage's version
when what it computes changes: its artifacts, and all that hang on them, are then made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from conf.schema import Config, Model
from pipeline.errors import PipelineError
from pipeline.models.vocabulary import check_pair
from pipeline.plan.rules import check_names
from pipeline.plan.slices import model_slice, rule_slice, run_settings, statistics_slice
from pipeline.store.fingerprint import fingerprint
from pipeline.store.identity import Identities

VERSIONS = {
    "prompts": 2,
    "distributions": 2,
    "certificates": 2,
    "run_lengths": 2,
    "drafts": 2,
    "acceptance": 2,
    "decoding": 2,
    "report": 2,
}
PACKAGES = {"prompts", "distributions", "drafts", "acceptance", "decoding", "report"}
MODULES = {
    name: f"pipeline.stages.{name}" + (".compute" if name in PACKAGES else "") for name in VERSIONS
}
RESUMABLE = {"distributions", "drafts", "decoding"}  # what a killed run leaves is completed
NEED_DRAFTER = {"drafts", "acceptance", "decoding", "report"}
DRAFTING = {"drafts", "decoding"}  # load a target and a drafter
JOINT = {"certificates"}  # all nodes on one upstream are computed in one pass, under one lock


@dataclass(frozen=True)
class Node:
    """One artifact to be: its stage, what determines it, and what it is made from."""

    stage: str
    label: str
    config: Mapping[str, Any]
    upstream: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # never determines the content

    @property
    def version(self) -> int:
        """The version of the stage's computation."""
        return VERSIONS[self.stage]

    @cached_property
    def upstream_nodes(self) -> tuple[Node, ...]:
        """All nodes this one is made from, in order."""
        return tuple(node for nodes in self.upstream.values() for node in nodes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of stage, version, configuration slice and upstream fingerprints."""
        return fingerprint(
            {
                "stage": self.stage,
                "version": self.version,
                "config": self.config,
                "upstream": {
                    name: [node.fingerprint for node in nodes]
                    for name, nodes in self.upstream.items()
                },
            }
        )

    @property
    def hash12(self) -> str:
        """The part of the fingerprint that names the directory."""
        return self.fingerprint[:12]


def with_upstream(nodes: Iterable[Node]) -> dict[str, Node]:
    """Return `nodes` and all they are made from, by fingerprint."""
    found: dict[str, Node] = {}
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node.fingerprint not in found:
            found[node.fingerprint] = node
            todo += node.upstream_nodes
    return found


def plan(config: Config, rules: list[Any], identities: Identities) -> dict[str, list[Node]]:
    """Return the nodes of every stage for `config`, by stage.

    `rules` are the acceptance rules of `config.criteria`, already built.
    """
    if not config.targets:
        raise PipelineError(
            "no target: add target=mini_large, or target=local "
            "targets.local.path=DIRECTORY_OR_HUB_ID"
        )
    check_k(rules, config.distributions.k)
    check_prompts(config)
    if config.stage == "report":
        check_names([target.label for target in config.targets.values()], rules)
    targets = list(config.targets.items())
    nodes: dict[str, list[Node]] = {name: [] for name in VERSIONS}
    certificates: list[tuple[Node, ...]] = []
    for key, target in targets:
        prompts = prompts_node(config, key, target, identities)
        dump = distributions_node(config, key, target, prompts, identities)
        nodes["prompts"].append(prompts)
        nodes["distributions"].append(dump)
        certificates.append(tuple(certificate_node(config, rule, dump) for rule in rules))
        nodes["certificates"] += certificates[-1]
        nodes["run_lengths"].append(run_lengths_node(config, target, certificates[-1]))
        if config.drafter is not None:
            drafts = drafts_node(config, key, config.drafter, dump, identities)
            nodes["drafts"].append(drafts)
            nodes["acceptance"].append(acceptance_node(config, rules, drafts))
            nodes["decoding"].append(decoding_node(config, prompts, drafts))
    nodes["report"] = [report_node(config, rules, nodes)]
    return nodes


def check_k(rules: list[Any], k: int) -> None:
    """Check that `k` stored tokens a step are enough for all rules."""
    for rule in rules:
        if rule.minimum_k > k:
            raise PipelineError(
                f"distributions.k={k} is too small for {rule.label}: "
                f"store at least {rule.minimum_k} tokens a step"
            )


def check_prompts(config: Config) -> None:
    """Check that the lengths of prompts leave a range."""
    prompts = config.prompts
    if prompts.min_tokens > prompts.max_tokens:
        raise PipelineError(
            f"prompts.min_tokens={prompts.min_tokens} exceeds "
            f"prompts.max_tokens={prompts.max_tokens}: no prompt has such a length"
        )


def prompts_node(config: Config, key: str, target: Model, identities: Identities) -> Node:
    """The prompts of a target: equal for targets that share a tokenizer."""
    prompts = config.prompts
    local = {
        "source": prompts.source,
        "revision": prompts.revision,
        "model": target.path,
        "model_revision": target.revision,
    }
    return Node(
        "prompts",
        config.study,
        {
            "source": identities.source(prompts.source, prompts.revision, "prompts.source"),
            "split": prompts.split,
            "count": prompts.count,
            "min_tokens": prompts.min_tokens,
            "max_tokens": prompts.max_tokens,
            "seed": prompts.seed,
            "template": prompts.template,
            "enable_thinking": prompts.enable_thinking,
            "tokenizer": identities.tokenizer(target.path, target.revision, f"targets.{key}.path"),
        },
        settings=local,
    )


def distributions_node(
    config: Config, key: str, target: Model, prompts: Node, identities: Identities
) -> Node:
    """The dump of a target's trajectories."""
    slice_ = {
        "model": model_slice(f"targets.{key}", target, identities),
        "steps": config.distributions.steps,
        "k": config.distributions.k,
        "temperature": config.distributions.temperature,
        "top_p": config.distributions.top_p,
        "top_k": config.distributions.top_k,
        "seed": config.distributions.seed,
        "certified_temperature": config.certificates.temperature,
    }
    return Node(
        "distributions", key, slice_, {"prompts": (prompts,)}, settings=run_settings(config, target)
    )


def certificate_node(config: Config, rule: Any, dump: Node) -> Node:
    """The certificates of one rule on one dump."""
    slice_ = rule_slice(rule) | {"temperature": config.certificates.temperature}
    return Node(
        "certificates",
        rule.label,
        slice_,
        {"distributions": (dump,)},
        settings={"rule": rule, **statistics_slice(config)},
    )


def run_lengths_node(config: Config, target: Model, certificates: tuple[Node, ...]) -> Node:
    """The certifiable run lengths of one target under all rules."""
    return Node(
        "run_lengths",
        target.label,
        {
            "eps": list(config.run_lengths.eps),
            "window": config.run_lengths.window,
            **statistics_slice(config),
        },
        {"certificates": certificates},
    )


def drafts_node(
    config: Config, key: str, drafter: Model, dump: Node, identities: Identities
) -> Node:
    """The drafter beside a target, on the target's trajectories.

    Raises:
        PipelineError: the stage that is asked for needs the drafter, and the two have different
            tokenizers.
    """
    if config.stage in NEED_DRAFTER:
        target = config.targets[key]
        check_pair((f"targets.{key}", target), ("drafter", drafter), identities)
    return Node(
        "drafts",
        key,
        {
            "target": dump.config["model"],
            "drafter": model_slice("drafter", drafter, identities),
            "temperature": config.certificates.temperature,
        },
        {"prompts": dump.upstream["prompts"], "distributions": (dump,)},
        settings={"target": dump.settings, "drafter": run_settings(config, drafter)},
    )


def acceptance_node(config: Config, rules: list[Any], drafts: Node) -> Node:
    """What the rules accept of a drafter, and what of it is certified.

    Raises:
        PipelineError: a preset or a dial is no rule, or needs more stored tokens.
    """
    from pipeline.plan.rules import build_dials, build_rules

    asked = config.acceptance
    presets = {
        name: build_rules(preset, f"acceptance.presets.{name}")[0]
        for name, preset in asked.presets.items()
    }
    dials = build_dials(asked.dials)
    turned = [rule for dial in dials for rule in dial.rules]
    if config.stage in ("acceptance", "report"):
        check_k([*presets.values(), *turned], config.distributions.k)
    return Node(
        "acceptance",
        drafts.label,
        {
            "rules": [rule_slice(rule) for rule in rules],
            "presets": {name: rule_slice(rule) for name, rule in presets.items()},
            "dials": [rule_slice(rule) for rule in turned],
            "fractions": list(asked.fractions),
            "wanted_length": asked.wanted_length,
            "window": config.run_lengths.window,
            **statistics_slice(config),
        },
        {"drafts": (drafts,)},
        settings={
            "rules": rules,
            "presets": presets,
            "dials": dials,
            "target": drafts.settings["target"]["label"],
            "drafter": drafts.settings["drafter"]["label"],
        },
    )


def decoding_node(config: Config, prompts: Node, drafts: Node) -> Node:
    """Decoding with a drafter, beside the target alone.

    Raises:
        PipelineError: a method is not defined, before any work.
    """
    from pipeline.plan.methods import build_methods

    methods = build_methods(config.decoding.methods, config.decoding.draft_length)
    return Node(
        "decoding",
        drafts.label,
        {
            "target": drafts.config["target"],
            "drafter": drafts.config["drafter"],
            "prompts": min(config.decoding.prompts, config.prompts.count),
            "steps": config.decoding.steps,
            "seed": config.decoding.seed,
            "lookup": config.decoding.lookup,
            "methods": [
                {
                    "drafter": method.drafter,
                    "sampling": method.sampling,
                    "draft_length": method.draft_length,
                    "temperature": method.temperature,
                    **({} if method.rule is None else rule_slice(method.rule)),
                }
                for method in methods
            ],
        },
        {"prompts": (prompts,)},
        settings={**drafts.settings, **statistics_slice(config), "methods": methods},
    )


def report_node(config: Config, rules: list[Any], nodes: Mapping[str, list[Node]]) -> Node:
    """The report; printed names are part of its content.

    Upstream lists follow the order of the targets; certificates are target-major, one a rule.
    """
    from analysis.rules.builtin import to_mapping

    return Node(
        "report",
        config.study,
        {
            "study": config.study_name or config.study,
            "targets": [target.label for target in config.targets.values()],
            "drafter": None if config.drafter is None else config.drafter.label,
            "rules": [to_mapping(rule) for rule in rules],
            **statistics_slice(config),
        },
        {
            name: tuple(nodes[name])
            for name in (
                "prompts",
                "distributions",
                "certificates",
                "run_lengths",
                "drafts",
                "acceptance",
                *(["decoding"] if config.decoding.report else []),
            )
        },
    )
