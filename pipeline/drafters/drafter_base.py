"""The base classes of drafters: names, files, how they draft, which engines run them.

A kind is one class in a file of its own; `pipeline.drafters.KINDS` lists them. Planning a study
reads the attributes of the classes only, so that torch is imported by the methods that need it.
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
    """A kind of drafter; an instance is one that is loaded.

    Attributes:
        name: of the kind in `decoding.methods`, as in ``drafter: prompt_lookup``.
        in_method_names: what it adds to a method's printed name.
        in_sentences: how a sentence calls it; empty for the label of the configured drafter.
        has_files: whether the configuration's key `drafter` names its files.
        gives_logits: whether it gives a distribution over tokens. Without one its drafts are
            chains, verified token by token.
        layers: after how many of the target's layers it reads hidden states; empty is none.
    """

    name: ClassVar[str]
    in_method_names: ClassVar[str] = ""
    in_sentences: ClassVar[str] = ""
    has_files: ClassVar[bool] = False
    gives_logits: ClassVar[bool] = False
    layers: tuple[int, ...] = ()

    @classmethod
    def reads(cls, drafter: DrafterConfig | ModelSpec) -> bool:  # noqa: ARG003
        """Say whether the files that the key `drafter` names are of this kind."""
        return False

    @classmethod
    def engines(cls, settings: Json) -> str:  # noqa: ARG003
        """Return the engines that run its chains, for print; `settings` are those of decoding."""
        return ""

    def proposer(self, sampler: Sampler, tree: TreeShape | None, device: torch.device) -> Proposer:
        """Return what drafts one answer; `sampler` chooses its tokens, `tree` is their shape."""
        raise NotImplementedError


@dataclass(frozen=True)
class NeuralDrafter(Drafter):
    """A drafter that the key `drafter` names: a language model, or a head on the target."""

    name: ClassVar[str] = "model"
    has_files: ClassVar[bool] = True
    gives_logits: ClassVar[bool] = True

    model: LanguageModel | Eagle3Drafter

    @classmethod
    def load(cls, spec: ModelSpec, target: LanguageModel) -> NeuralDrafter:
        """Load it for a target.

        Raises:
            PipelineError: it can't be read, or does not fit the target.
        """
        raise NotImplementedError

    @classmethod
    def check(cls, spec: ModelSpec, target: LanguageModel) -> int | None:
        """Check, before any weights are read, that it can draft for a target.

        The target is given without its weights.

        Returns:
            The rows of its own vocabulary; None where it has the target's.
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
        """Read texts (B, n) as if each of their last `keep` tokens had been drafted.

        Args:
            ids: the texts.
            hidden: (B, n, layers, d) the target's hidden states; None without `layers`.
            keep: how many rows are wanted of each.
            depths: of a draft; a language model has one.
            padding: (B,) columns before the first token of each text; None is none.

        Returns:
            Logits (B, keep, V) by depth; and those of a q' that gives every token a probability
            (`Eagle3Drafter.completed`), None where q does.
        """
        raise NotImplementedError


class TextDrafter(Drafter):
    """A drafter that needs the text only. A subclass defines `draft`."""

    @classmethod
    def load(cls, settings: Json, prompts: Sequence[Sequence[int]]) -> TextDrafter:  # noqa: ARG003
        """Return it for the `settings` of decoding; `prompts` are all that will be decoded."""
        return cls()

    def draft(self, text: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that may follow a text."""
        raise NotImplementedError

    def proposer(self, sampler: Sampler, tree: TreeShape | None, device: torch.device) -> Proposer:  # noqa: ARG002
        """Return what drafts one answer."""
        from pipeline.decoding.proposers import TextProposer

        return TextProposer(self.draft, device)
