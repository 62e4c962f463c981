"""MLX (mlx-vlm): answers only.

`mlx_vlm/server/schemas.py` defines llama.cpp's timings with peak_memory, and newer versions add
draft_rounds. Every pass after prefill verifies a draft, so the rounds are all passes.
"""

from __future__ import annotations

from pipeline.engines.counts import EngineAnswer
from pipeline.engines.engine_base import AnswerPart, Count, Engine, field_at, mapping
from pipeline.engines.llama_cpp import TimingFields

OWN_TIMINGS = {"draft_rounds", "peak_memory"}


class MLXFields(TimingFields):
    """Counts of one request; older versions draft and do not count it."""

    draft_rounds: Count | None = field_at("timings", "draft_rounds")

    def add_counts(self, answer: EngineAnswer, part: AnswerPart) -> EngineAnswer:
        """Return the answer with these counts."""
        answer = super().add_counts(answer, part)
        if self.draft_n is None or self.draft_rounds is None:
            return answer
        return answer._replace(drafts=self.draft_rounds, counted_passes=self.draft_rounds)


class MLX(Engine):
    """The server of mlx-vlm."""

    name = "MLX"
    fields = MLXFields

    def wrote(self, part: AnswerPart) -> bool:
        """Say whether an answer has timings with what only mlx-vlm adds."""
        return not OWN_TIMINGS.isdisjoint(mapping(part.body.get("timings")))
