"""Write a head as engines read it: ``python -m pipeline.training.export HEAD DIRECTORY``.

HEAD is a directory of the project's own layout, DIRECTORY gets EAGLE-3's: config.json, and
model.safetensors with d2t and t2d, which name the tokens that the head drafts, and their rows of
the target's projection in bfloat16 (lm_head). An engine takes the target's embedding. The target is
that of conf/drafter_training.yaml; target=NAME gives another one of conf/target.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.console import command
from pipeline.errors import PipelineError
from pipeline.models.heads.head_files import (
    LAYERS,
    OFFSETS,
    PROJECTION,
    TARGETS,
    WEIGHTS,
    HeadFiles,
    drafted_ids,
    own_head,
)
from pipeline.models.heads.load import check_head
from pipeline.models.language_model import LanguageModel
from pipeline.training.text import load_target, recipe_of


def main(arguments: list[str]) -> None:
    """Export one head."""
    with command("python -m pipeline.training.export HEAD DIRECTORY", __doc__, arguments):
        paths = [word for word in arguments if "=" not in word]
        if len(paths) != 2:
            raise PipelineError("give the directory of a head, then the one to write")
        head, directory = paths
        files = own_head(head, "HEAD")
        target = load_target(recipe_of([word for word in arguments if "=" in word]), "float32")[0]
        export(files, target, Path(directory))
        print(f"{directory}: written")


def export(files: HeadFiles, target: LanguageModel, directory: Path) -> None:
    """Write the head of `files` for `target` in EAGLE-3's layout.

    Raises:
        PipelineError: it can't draft for this target.
    """
    weights = check_head(files, target, "full", "HEAD")
    rows: Tensor = target.module.get_output_embeddings().weight[: target.vocab_size]
    if OFFSETS in weights:
        drafted = drafted_ids(weights[OFFSETS])
        weights[TARGETS] = torch.zeros(len(rows), dtype=torch.bool).index_fill(0, drafted, True)
        rows = rows[drafted]
    weights[PROJECTION] = rows.bfloat16()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / WEIGHTS)
    layers = list(files.layers)
    described: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **files.shape,
        "draft_vocab_size": len(rows),
        **asdict(files.norms),
        LAYERS: layers,
        "num_aux_hidden_states": len(layers),  # vLLM takes three without
        "eagle_config": {"use_aux_hidden_state": True, LAYERS: layers},
    }
    (directory / "config.json").write_text(json.dumps(described, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
