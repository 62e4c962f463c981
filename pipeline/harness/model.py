"""A model of lm-evaluation-harness: text is decoded by a method, likelihoods are the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from pipeline.decoding.pair import DecodingPair, check_fits, decode_timed
from pipeline.decoding.reading import log_likelihood, read_again
from pipeline.errors import PipelineError
from pipeline.harness.tasks import LONGEST_ANSWER, before_stop, chat_text, text_tokens
from pipeline.plan.method import Method


class DecodingModel(TemplateLM):
    """Answers with one method of a target and its drafter.

    A task that asks for sampling gets what the method decodes, at the method's temperature. Answers
    depend on the request alone, so they can be cached by the harness.
    """

    def __init__(self, pair: DecodingPair, method: Method, tokenizer: Any) -> None:
        """Decode with `method`; `tokenizer` is the target's."""
        super().__init__()
        self.pair, self.method, self.tokenizer = pair, method, tokenizer
        self.calls = self.emitted = 0  # of the target after the prompts', and tokens from them

    @property
    def eot_token_id(self) -> int:
        """The token before a text without context."""
        bos = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if bos is None else bos)

    @property
    def max_length(self) -> float:
        """The longest sequence of the target, in tokens."""
        return self.pair.target.context

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches requests."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as text, up to where the next answer begins."""
        return chat_text(self.tokenizer, chat_history, add_generation_prompt, enable_thinking=False)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text; those that begin a text are added where it has none."""
        return text_tokens(self.tokenizer, string, special=add_special_tokens)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
        """Return the answers, cut before the first text of `until`."""
        found = []
        for request in requests:
            context, asked = request.args
            text = self._answer(context, asked, f"{request.task_name}/{request.doc_id}")
            self.cache_hook.add_partial("generate_until", request.args, text)
            found.append(text)
        return found

    def _answer(self, context: str, asked: dict[str, Any], name: str) -> str:
        """Return one answer; `name` keys its sampling noise."""
        limit = int(asked.get("max_gen_toks", LONGEST_ANSWER))
        row = {"prompt_id": name, "token_ids": self.tok_encode(context)}
        check_fits(replace(self.pair, steps=limit), row)
        answer, _ = decode_timed(self.pair, self.method, row, limit)
        self.calls += len(answer.calls)
        self.emitted += sum(call.emitted for call in answer.calls)
        text = str(self.tokenizer.decode(answer.tokens, skip_special_tokens=True))
        return before_stop(text, asked.get("until"))

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,  # noqa: ARG002
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """Return of each continuation its log-likelihood in nats, and whether it is greedy."""
        found = []
        for texts, context, continuation in requests:
            found.append(self._likelihood(context, continuation))
            self.cache_hook.add_partial("loglikelihood", texts, found[-1])
        return found

    def _likelihood(
        self, context: Sequence[int], continuation: Sequence[int]
    ) -> tuple[float, bool]:
        size, most = len(context) + len(continuation), self.pair.target.context
        if len(continuation) >= most:
            raise PipelineError(
                f"a continuation of {len(continuation)} tokens exceeds the context of the target, "
                f"{most:g} tokens"
            )
        cut = list(context)[int(max(0, size - most)) :]  # the end of a context that is too long
        if not continuation:
            return 0.0, True
        logits = read_again(self.pair.target, cut, continuation)
        greedy = logits.argmax(1).tolist() == list(continuation)
        return log_likelihood(logits, continuation), greedy

    def loglikelihood_rolling(
        self,
        requests: list[Instance],
        disable_tqdm: bool = False,  # noqa: ARG002
    ) -> list[float]:
        """Return the log-likelihood of whole texts, each in windows that share no scored token."""
        found = []
        for request in requests:
            ids, total = self.tok_encode(request.args[0], add_special_tokens=False), 0.0
            window = int(min(self.pair.target.context, len(ids) + 1))
            for at in range(0, len(ids), window - 1):
                part = ids[at : at + window - 1]
                before = [self.eot_token_id] if at == 0 else ids[at - 1 : at]
                total += self._likelihood(before, part)[0]
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            found.append(total)
        return found
