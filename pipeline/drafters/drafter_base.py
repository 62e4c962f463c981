"""Base classes of the kinds of drafters.

Each kind is a class in a file of its own, listed in `pipeline.drafters.KINDS`. Planning a study
uses only class attributes, so torch is imported inside the methods that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from conf.schema import DrafterConfig
    from pipeline.core.stage import Json, ModelSpec
    from pipeline.decoding.proposers import Proposer, TreeShape
    from pipeline.decoding.sampling import Sampler
    from pipeline.models.eagle3.drafter import Eagle3Drafter
    from pipeline.models.language_model import LanguageModel


class Drafter:
    """A kind of drafter. The class describes the kind; an instance is a loaded drafter.

    Attributes:
        name: what `decoding.methods` calls it, as in ``drafter: prompt_lookup``.
        in_method_names: the text that it adds to the printed name of a method.
        in_sentences: its name in sentences of the report; empty: the label of the key `drafter`.
        has_files: whether it is loaded from the files that the key `drafter` names.
        gives_logits: whether it gives a distribution over tokens. If not, it can draft only chains,
            without sampling.
        layers: which of the target's hidden states it reads: those after so many layers.
    """

    name: ClassVar[str]
    in_method_names: ClassVar[str] = ""
    in_sentences: ClassVar[str] = ""
    has_files: ClassVar[bool] = False
    gives_logits: ClassVar[bool] = False
    layers: tuple[int, ...] = ()

    @classmethod
    def reads(cls, drafter: DrafterConfig | ModelSpec) -> bool:  # noqa: ARG003
        """Say whether a drafter of the configuration is of this kind, by its settings."""
        return False

    @classmethod
    def engines(cls, settings: Json) -> str:  # noqa: ARG003
        """Return the engines that support it, as text; `settings` are those of decoding."""
        return ""

    def proposer(self, sampler: Sampler, tree: TreeShape | None, device: torch.device) -> Proposer:
        """Return a proposer for one answer; `sampler` chooses tokens, `tree` is the shape."""
        raise NotImplementedError


@dataclass(frozen=True)
class NeuralDrafter(Drafter):
    """A drafter with weights, which the key `drafter` names: a language model or a head."""

    name: ClassVar[str] = "model"
    has_files: ClassVar[bool] = True
    gives_logits: ClassVar[bool] = True

    model: LanguageModel | Eagle3Drafter

    @classmethod
    def load(cls, spec: ModelSpec, target: LanguageModel) -> NeuralDrafter:
        """Load the drafter of a target.

        Raises:
            PipelineError: it can't be read, or does not fit the target.
        """
        raise NotImplementedError

    @classmethod
    def check_fit(cls, spec: ModelSpec, target: LanguageModel) -> int | None:
        """Check that it can draft for a target, which has no weights yet.

        Returns:
            Its number of logits per position; None if it has the target's vocabulary.

        Raises:
            PipelineError: it can't.
        """
        raise NotImplementedError

    def teacher_forced_logits(
        self,
        ids: Tensor,
        hidden: Tensor | None,
        keep: int,
        depths: int = 1,
        padding: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Run the drafter teacher-forced: draft after each of the last `keep` tokens of texts.

        Args:
            ids: (B, n) the texts.
            hidden: (B, n, layers, d) the target's hidden states; None without `layers`.
            keep: how many positions logits are wanted for.
            depths: how many depths of a draft; for a language model all are alike, so one.
            padding: (B,) columns before the first token of each text; None for none.

        Returns:
            Logits (B, keep, V) by depth; and logits of a q' that extends q to the whole vocabulary
            (`Eagle3Drafter.completed`), None if q covers it.
        """
        raise NotImplementedError


class TextDrafter(Drafter):
    """A drafter without weights, which drafts from the text. A subclass defines `draft`."""

    @classmethod
    def load(cls, settings: Json, prompts: Sequence[Sequence[int]]) -> TextDrafter:  # noqa: ARG003
        """Make one from the `settings` of decoding; `prompts` are all that will be decoded."""
        return cls()

    def draft(self, text: Sequence[int], count: int) -> list[int]:
        """Draft up to `count` tokens after a text."""
        raise NotImplementedError

    def proposer(self, sampler: Sampler, tree: TreeShape | None, device: torch.device) -> Proposer:  # noqa: ARG002
        """Return a proposer for one answer."""
        from pipeline.decoding.proposers import TextProposer

        return TextProposer(self.draft, device)
