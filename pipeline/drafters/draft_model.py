"""The kind of drafter that is a smaller language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.drafters.drafter_base import NeuralDrafter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from conf.schema import DrafterConfig
    from pipeline.core.stage import Json, ModelSpec
    from pipeline.decoding.proposers import ModelProposer, TreeShape
    from pipeline.decoding.sampling import Sampler
    from pipeline.models.language_model import LanguageModel


@dataclass(frozen=True)
class DraftModel(NeuralDrafter):
    """A language model with the target's tokenizer."""

    model: LanguageModel

    @classmethod
    def reads(cls, drafter: DrafterConfig | ModelSpec) -> bool:
        """Say whether the drafter is a language model, not a head."""
        return drafter.head is None

    @classmethod
    def engines(cls, settings: Json) -> str:  # noqa: ARG003
        """Return the engines that support it."""
        return "vLLM, llama.cpp"

    @classmethod
    def load(cls, spec: ModelSpec, target: LanguageModel) -> DraftModel:  # noqa: ARG003
        """Load the model."""
        from pipeline.models.loading import load_model

        return cls(load_model(spec))

    @classmethod
    def check_fit(cls, spec: ModelSpec, target: LanguageModel) -> int:  # noqa: ARG003
        """Return the model's number of logits per position."""
        from pipeline.models.loading import skeleton

        return skeleton(spec).vocab_size

    def proposer(
        self,
        sampler: Sampler,
        tree: TreeShape | None,
        device: torch.device,  # noqa: ARG002
    ) -> ModelProposer:
        """Return a proposer for one answer."""
        from pipeline.decoding.proposers import ModelProposer

        return ModelProposer(self.model, sampler, tree)

    def teacher_forced_logits(
        self,
        ids: Tensor,
        hidden: Tensor | None,  # noqa: ARG002
        keep: int,
        depths: int = 1,  # noqa: ARG002
        padding: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Run the model over the texts once: its logits are the same at all depths."""
        from pipeline.models.kv_session import KVSession

        session = KVSession(self.model, ids.shape[1], padding=padding)
        return [session.append(ids, keep=keep)], None
