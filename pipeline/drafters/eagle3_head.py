"""The kind of drafter that is an EAGLE-3 head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.drafters.drafter_base import NeuralDrafter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from conf.schema import DrafterConfig
    from pipeline.core.stage import Json, ModelSpec
    from pipeline.decoding.proposers import Eagle3Proposer, TreeShape
    from pipeline.decoding.sampling import Sampler
    from pipeline.models.eagle3.drafter import Eagle3Drafter
    from pipeline.models.language_model import LanguageModel


@dataclass(frozen=True)
class Eagle3Head(NeuralDrafter):
    """A head that reads the target's hidden states."""

    model: Eagle3Drafter

    @property
    def layers(self) -> tuple[int, ...]:  # type: ignore[override]
        """Which of the target's hidden states it reads: those after so many layers."""
        return self.model.layers

    @classmethod
    def reads(cls, drafter: DrafterConfig | ModelSpec) -> bool:
        """Say whether the drafter is a head."""
        return drafter.head is not None

    @classmethod
    def engines(cls, settings: Json) -> str:  # noqa: ARG003
        """Return the engines that support it."""
        return "vLLM (eagle3)"

    @classmethod
    def load(cls, spec: ModelSpec, target: LanguageModel) -> Eagle3Head:
        """Load the head."""
        from pipeline.models.eagle3.loading import load_head

        return cls(load_head(spec, target))

    @classmethod
    def check_fit(cls, spec: ModelSpec, target: LanguageModel) -> None:
        """Check that the head fits the target; its logits cover the target's vocabulary."""
        from pipeline.models.eagle3.loading import check_head

        check_head(spec, target)

    def proposer(
        self,
        sampler: Sampler,
        tree: TreeShape | None,
        device: torch.device,  # noqa: ARG002
    ) -> Eagle3Proposer:
        """Return a proposer for one answer."""
        from pipeline.decoding.proposers import Eagle3Proposer

        return Eagle3Proposer(self.model, sampler, tree)

    def teacher_forced_logits(
        self,
        ids: Tensor,
        hidden: Tensor | None,
        keep: int,
        depths: int = 1,
        padding: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Run the head over the texts, once for each depth."""
        from pipeline.models.eagle3.drafter import teacher_forced_outputs

        assert hidden is not None
        model = self.model
        outputs = teacher_forced_outputs(model.head, model.embed(ids), hidden, depths, padding)
        kept = [output[:, -keep:] for output in outputs]
        drafts = [model.logits(output) for output in kept]
        return drafts, model.completed(kept[0], drafts[0])
