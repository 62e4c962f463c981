"""A study small enough to commit what it computes: models of 48 tokens.

Their weights are the integers of a frozen generator, so they are the same everywhere.
"""

import re
from contextlib import redirect_stdout
from io import StringIO
from unittest.mock import patch

from pipeline.core.stage import with_inputs
from pipeline.study import STAGES, Study
from tests import methods
from tests.results.models import write_model, write_prompts

RULES = [
    "{rule: greedy}",
    "{rule: additive, t: [0.02, 0.2]}",
    "{rule: multiplicative, alpha: 0.4}",
    "{rule: topm_additive, m: 2, t: 0.2}",
    "{rule: topm_multiplicative, m: 3, alpha: 0.1}",
    "{rule: typical, eps0: 0.1, delta0: 0.09}",
    "{rule: absolute, theta: 0.15}",
    "{rule: mars, theta: 0.9}",
    "{rule: tree, m: [2, 4]}",
]
METHODS = [
    "{drafter: model, rule: greedy, draft_length: [1, 3], temperature: 0}",
    "{drafter: prompt_lookup, rule: greedy, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: additive, t: 0.2, draft_length: 3, temperature: 0}",
    "{drafter: model, rule: mars, theta: 0.9, draft_length: 3, temperature: [0, 0.7]}",
    "{drafter: model, sampling: speculative, draft_length: 3, temperature: 0.7}",
    "{drafter: model, sampling: races, draft_length: 3, temperature: 0.7}",
]
OVERRIDES = [
    "study=mini",
    "target=local",
    "targets.local.label=wide",
    "targets.local.dtype=float32",
    "drafter=local",
    "drafter.label=narrow",
    "drafter.dtype=float32",
    "prompts.count=6",
    "prompts.min_tokens=4",
    "prompts.max_tokens=12",
    f"criteria={{paper: [{', '.join(RULES)}]}}",
    "distributions.steps=10",
    "distributions.k=8",
    *methods.overrides(*METHODS),
    "decoding.prompts=3",
    "decoding.steps=10",
    "accuracy.tasks=[facts, reading]",
    "accuracy.items=2",
    "run_lengths.eps=[0.02, 0.2, 0.5]",
    "statistics.resamples=200",
    "device={name: cpu, threads: 1, batch: 3}",
]
CONTENT = re.compile(
    "content [0-9a-f]{12}"
)  # of the model's files, which name transformers' version
FILES = {"report": ("tables/*.csv", "tables/*.tex")}  # figures change with the font renderer


class FixedStudy:
    """The study in a directory, which computes each stage once."""

    def __init__(self, folder):
        """Write the models and prompts of the study below `folder`."""
        self.folder = folder
        places = {
            "targets.local.path": write_model(folder / "wide"),
            "drafter.path": write_model(folder / "narrow", noise=0.06),
            "prompts.source": write_prompts(folder / "prompts.jsonl"),
        }
        given = [f"{key}='{place}'" for key, place in places.items()]
        self.study = Study(*OVERRIDES, *given, f"outputs='{folder}'")

    def versions(self, stage):
        """Return the versions that identify a stage's artifacts: its own and those above it."""
        found = {task.stage.name for task in with_inputs(self.study.tasks[stage]).values()}
        return {name: one.version for name, one in STAGES.items() if name in found}

    def results(self, stage):
        """Compute a stage; return its tables by file and column, and its texts by lines."""
        with (
            patch("analysis.report.style.render", return_value=b""),  # slow, and not compared
            patch("pipeline.stages.report.page.embedded", return_value=""),
            redirect_stdout(StringIO()),
        ):
            made = [self.study.store.get(task) for task in self.study.tasks[stage]]
        return {name: content for artifact in made for name, content in contents(artifact)}


def contents(artifact):
    """Yield the files of an artifact that do not depend on the machine, and what they hold."""
    stage = artifact.record["stage"]
    for name in sorted(path.stem for path in artifact.directory.glob("*.parquet")):
        table = artifact.read(name)
        if stage != "certificates":
            yield name, table.to_pydict()
            continue
        for rule in dict.fromkeys(table["rule"].to_pylist()):
            rows = artifact.read(name, rule=rule).drop_columns("rule").to_pydict()
            yield f"{rule}/{name}", rows
    for pattern in FILES.get(stage, ()):
        for path in sorted(artifact.directory.glob(pattern)):
            text = CONTENT.sub("content ...", path.read_text())
            yield path.relative_to(artifact.directory).as_posix(), text.splitlines()
    if stage == "prompts":
        yield "facts", {"excluded": artifact.metadata["excluded"]}
