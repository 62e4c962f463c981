"""The model card of a trained head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CARD = """# {name}

A head that drafts for {target}: it reads the target's hidden states after {layers} of its layers
and the embedding of the next token, and predicts the one after. One decoder layer of width {width}
(after EAGLE-3, arXiv 2503.01840), {parameters:,} parameters in bfloat16. Embedding and output
projection are the target's own and are not in this directory. `d2t` in `model.safetensors` names
the {vocabulary:,} tokens of its reduced vocabulary (`drafter.head.vocabulary=reduced`).

Trained by `python -m pipeline.drafter_training {name}` on text that the target wrote itself
(`assets/smollm2/training_text/`): {conversations:,} conversations, {answer_tokens:,} answer
tokens. Settings are in `conf/drafter_training.yaml`. Loss: cross-entropy to the target's
distribution and distance to its last hidden state; {passes}.
Optimizer: Muon, for norms AdamW; products in {products}.

Its argmax, of the {vocabulary:,} tokens, is the target's at this share of the {held_out:,} answer
tokens of conversations that were held out:

| depth of the draft | {depths} |
|---|{rules}|
| share | {shares} |

The text is a model's and has its mistakes; the head has learned to predict that model and nothing
else. Licence: Apache-2.0, as the model whose text and states it was trained on.
"""


def write_card(
    folder: Path, name: str, target: str, settings: Any, measured: Mapping[str, Any]
) -> None:
    """Write README.md beside a head's weights.

    Args:
        folder: of the head.
        name: of the head in the recipe.
        target: printed name of the target.
        settings: of the training.
        measured: parameters, width, conversations, answer_tokens, held_out and agreement, by depth.
    """
    agreement: Sequence[float] = measured["agreement"]
    text = CARD.format(
        name=name,
        target=target,
        layers=", ".join(map(str, settings.layers)),
        vocabulary=settings.vocabulary,
        passes=_passes(settings),
        products="bfloat16" if settings.bfloat16 else "float32",
        depths=" | ".join(str(depth) for depth in range(1, len(agreement) + 1)),
        rules="|".join("---:" for _ in agreement),
        shares=" | ".join(f"{100 * share:.1f} %" for share in agreement),
        **{key: value for key, value in measured.items() if key != "agreement"},
    )
    (folder / "README.md").write_text(text)


def _passes(settings: Any) -> str:
    """Return how often it was trained on the text, and at which depths."""
    counts = (
        (settings.epochs, "depth 1 of a draft"),
        (settings.deep_epochs, f"depths 1 to {settings.depth}"),
    )
    passes = ", then ".join(f"{count} passes at {depths}" for count, depths in counts if count)
    return f"from the weights in `{settings.start}`, {passes}" if settings.start else passes
