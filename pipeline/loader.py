"""Read the artifacts of a study: ``study = Study("study=mini")``. Nothing is ever computed here.

For notebooks and scripts. Takes the same overrides as ``python -m pipeline`` and finds what that
command made; what is missing is an error that names the command to run.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from analysis.topk import TopK
from pipeline.config import composed
from pipeline.errors import PipelineError
from pipeline.models.token_texts import token_texts
from pipeline.store import distributions
from pipeline.store.artifacts import Artifact
from pipeline.store.columns import columns_of
from pipeline.store.node import Node

if TYPE_CHECKING:
    import pandas as pd


class Study:
    """The artifacts of one configuration."""

    def __init__(self, *overrides: str) -> None:
        """Compose the configuration from `overrides`, as the command line does."""
        from pipeline.plan.graph import prepare

        config = composed(overrides)
        self.overrides = overrides
        self.config, self.nodes, self.store = prepare(config)
        self.targets = list(self.config.targets)
        self.rules = [node.spec.rule for node in self._of("certificates", self.targets[0])]

    def artifact(self, stage: str, target: str | None = None, rule: str | None = None) -> Artifact:
        """Return the artifact of a stage; `target` is a key of `targets`, `rule` a rule's label.

        Raises:
            PipelineError: no such stage, target or rule, or the artifact was not made yet.
        """
        nodes = self._of(stage, target)
        if rule is not None:
            nodes = [node for node in nodes if node.label == rule]
        if not nodes:
            raise PipelineError(
                f"no {stage} of target={target} rule={rule} in this study; "
                f"targets: {self.targets}, rules: {[rule.label for rule in self.rules]}"
            )
        latest = self.store.find(nodes[0])
        if latest is None:
            command = self.command(f"stage={stage}")
            raise PipelineError(f"{stage} {nodes[0].label} does not exist yet: run `{command}`")
        return latest

    def command(self, *more: str) -> str:
        """Return the command that makes its artifacts, without the overrides of `solve`."""
        given = [word for word in self.overrides if not word.startswith("solve.")]
        return shlex.join(["python", "-m", "pipeline", *given, *more])

    def frame(
        self,
        stage: str,
        target: str | None = None,
        rule: str | None = None,
        columns: list[str] | None = None,
    ) -> pd.DataFrame:
        """Return the rows of an artifact, without the lists of top K."""
        artifact = self.artifact(stage, target, rule)
        if columns is None:
            named = columns_of(artifact.record.stage)["data"]
            columns = [name for name in named if not name.startswith("top_")]
        return artifact.read(columns=columns).to_pandas()

    def distributions(self, target: str) -> TopK:
        """Return the stored distributions of all steps of a target."""
        artifact = self.artifact("distributions", target)
        return distributions.read_distributions(artifact)

    def words(self, target: str) -> dict[int, str]:
        """Return the text of every token of a target, by its id.

        Tokens without a text are left out: those of an engine's log, or where the tokenizer is not
        at hand any more.
        """
        (node,) = self._of("distributions", target)
        drafts = self._of("drafts", target)
        made = self.store.find(drafts[0]) if drafts else None
        dump = self.artifact("distributions", target)
        size = dump.facts(distributions.StoredFacts).vocab_size
        return token_texts(node, dump, made, range(size))

    def _of(self, stage: str, target: str | None) -> list[Node]:
        if stage not in self.nodes:
            raise PipelineError(f"no stage {stage!r}; stages: {', '.join(self.nodes)}")
        nodes = self.nodes[stage]
        if target is None or len(nodes) < len(self.config.targets):
            return nodes
        if target not in self.targets:
            raise PipelineError(f"no target {target!r}; targets: {', '.join(self.targets)}")
        each = len(nodes) // len(self.targets)
        at = self.targets.index(target)
        return nodes[at * each : (at + 1) * each]
