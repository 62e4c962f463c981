"""Logs of engines in the formats that they write, whole and damaged, and the study of one."""

import json
import math
import re
from functools import partial

import numpy as np
import pytest
import scipy.special

from analysis import TopK, certify
from analysis.rules import Additive, StrictGreedy, Tree, Typical
from pipeline.engines.logs import prompt_id, prompts_of, read_log, stacked
from pipeline.errors import PipelineError
from tests.analysis.test_truncation import V, distributions

Answer = list[tuple[int, list[tuple[int, float]]]]  # emitted token, and the top tokens of each step
STARTS = np.array([0, 30, 31, 70])
RULES = [StrictGreedy(), Additive(0.1), Typical(0.1, 0.09), Tree(2)]


def with_emitted(token, top):
    """Return the values of a step's tokens, the emitted one first, as vLLM lists them."""
    return dict([(token, dict(top).get(token, top[-1][1] - 1.0)), *top])


def in_choice(name, logprobs):
    choice = {"index": 0, "logprobs": logprobs, "finish_reason": "length"}
    return json.dumps({"id": name, "model": "m", "choices": [choice], "usage": {"total_tokens": 9}})


def vllm_chat(name, answer, ids=True):
    """vLLM, chat: the emitted token first, one list of as many as were asked for."""

    def entry(token, value):
        text = f"token_id:{token}" if ids else f"<{token}>"
        return {"token": text, "logprob": max(value, -9999.0), "bytes": list(text.encode())}

    content = []
    for token, top in answer:
        values = with_emitted(token, top)
        listed = [entry(*pair) for pair in list(values.items())[: len(top)]]
        content.append({**entry(token, values[token]), "top_logprobs": listed})
    return in_choice(name, {"content": content})


def vllm_completions(name, answer):
    """vLLM, completions: an object by token, and one more where the emitted is not in the top."""
    tokens = [f"token_id:{token}" for token, _ in answer]
    tops = [{f"token_id:{t}": v for t, v in with_emitted(*step).items()} for step in answer]
    own = [top[token] for token, top in zip(tokens, tops, strict=True)]
    return in_choice(name, {"token_logprobs": own, "tokens": tokens, "top_logprobs": tops})


def llama_completion(_, answer):
    """llama.cpp, /completion."""

    def entry(token, value):
        value = float(np.finfo(np.float32).min) if np.isinf(value) else value
        return {"id": token, "token": ".", "bytes": [46], "logprob": value}

    found = [
        {**entry(token, with_emitted(token, top)[token]), "top_logprobs": [entry(*p) for p in top]}
        for token, top in answer
    ]
    return json.dumps({"content": "...", "stop": True, "completion_probabilities": found})


ENGINES = {
    "vllm chat": vllm_chat,
    "vllm completions": vllm_completions,
    "llama.cpp completion": llama_completion,
}


def read_back(log, vocab_size):
    """Return a log with the engine's ids as distributions."""
    found = stacked(log.trajectories)
    return TopK.from_log_probs(found["top_ids"], found["log_probs"], log.error, vocab_size)


def stored(share=0.2):
    """Steps without zeros, and emitted tokens of which a share are not the most probable."""
    p = distributions(100, seed=3) + 1e-9
    dist = TopK.from_probabilities(p / p.sum(axis=1, keepdims=True))
    rng = np.random.default_rng(0)
    other = dist.ids[np.arange(100), rng.integers(0, V, 100)]
    return dist, np.where(rng.random(100) < share, other, dist.ids[:, 0])


def written(path, write, k=6, digits=7, share=0.2):
    """Write the stored steps as four answers with k log-probabilities a step, rounded."""
    dist, emitted = stored(share)
    values = np.round(dist.log_probs[:, :k], digits)
    steps = [
        (int(token), list(zip(ids.tolist(), row.tolist(), strict=True)))
        for token, ids, row in zip(emitted, dist.ids[:, :k], values, strict=True)
    ]
    write = ENGINES[write] if isinstance(write, str) else write
    ends = zip(STARTS, [*STARTS[1:], len(steps)], strict=True)
    lines = [write(f"answer-{at}", steps[begin:end]) for at, (begin, end) in enumerate(ends)]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path, k=256, vocab_size=V, error=None):
    return read_log(path, k, vocab_size, error)


def sizes(log):
    return {prompt_id(key): len(steps) for key, steps in log.trajectories.items()}


def contained(found, exact):
    return bool(np.all((found.lower <= exact.lower) & (exact.upper <= found.upper)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_every_engine_is_read_back(engine, share, tmp_path):
    dist, emitted = stored(share)
    path = written(tmp_path / "log.jsonl", engine, share=share)
    log = read(path)
    assert list(sizes(log).values()) == [30, 1, 39, 30]
    assert stacked(log.trajectories)["token_id"].tolist() == emitted.tolist()
    # a sampled token that vLLM put first may stand for the last of the list in the chat format
    assert log.k == (5 if engine == "vllm chat" and share else 6)
    assert (log.answers, log.excluded) == (4, {})
    assert log.error == 1e-4
    back = read_back(log, V)
    assert np.array_equal(back.ids, dist.ids[:, : log.k])
    assert read(path, k=3).k == 3
    assert contained(certify(back, RULES), certify(dist, RULES))


def test_the_digits_give_the_error(tmp_path):
    path = written(tmp_path / "log.jsonl", "vllm completions", digits=4)
    assert read(path).error == pytest.approx(1.4e-4)
    assert read(path, error=1e-2).error == 1e-2
    path = written(tmp_path / "log.jsonl", "vllm completions", digits=9)
    assert read(path).error == 1e-4  # of two float32 passes
    path = written(tmp_path / "log.jsonl", "llama.cpp completion", digits=9)
    assert read(path, vocab_size=V).error == 1e-4  # V 2^-24 is less
    assert read(path, vocab_size=2**20).error == pytest.approx(2.0**-4)


def test_tokens_without_ids_are_told_by_their_bytes(tmp_path):
    dist, _ = stored(0.0)
    path = written(tmp_path / "log.jsonl", partial(vllm_chat, ids=False), k=4, digits=6, share=0.0)
    log = read(path)
    assert not log.given_ids
    first = dist.ids[0, 0]
    emitted_first = next(iter(log.trajectories.values()))[0].emitted
    assert log.texts[f"<{first}>".encode(), 0] == emitted_first
    assert np.allclose(read_back(log, V).probs, dist.probs[:, :4], atol=1e-5)


def test_lists_with_the_emitted_token_besides_are_longer_by_one(tmp_path):
    """Most steps emit a token outside their top: those of the others are not left out."""
    top = [(0, math.log(0.5)), (1, math.log(0.2))]
    path = tmp_path / "log.jsonl"
    path.write_text(vllm_completions("a", [(5, top)] * 4 + [(0, top)]))
    log = read(path)
    assert (log.k, log.excluded, sizes(log)) == (2, {}, {"a": 5})


def test_tokens_of_one_text_are_told_apart(tmp_path):
    values = zip("abb", (-0.5, -1.5, -2.5), strict=True)
    tops = [
        {"token": text, "bytes": list(text.encode()), "logprob": value} for text, value in values
    ]
    path = tmp_path / "log.jsonl"
    path.write_text(in_choice("a", {"content": [tops[0] | {"top_logprobs": tops}]}))
    log = read(path)
    assert (log.k, log.excluded) == (3, {})
    assert log.texts == {(b"a", 0): 0, (b"b", 0): 1, (b"b", 1): 2}


FIRST = ("choices", 0, "logprobs", "content", 0)  # token of a chat answer
TOP = (*FIRST, "top_logprobs")


def edited(path, changes, line=1):
    """Put values into the object of a line; callable ones get the old value."""
    lines = path.read_text().splitlines()
    body = json.loads(lines[line])
    for (*way, last), value in changes.items():
        inside = body
        for key in way:
            inside = inside[key]
        inside[last] = value(inside[last]) if callable(value) else value
    lines[line] = json.dumps(body)
    path.write_text("\n".join(lines) + "\n")
    return path


def own(by):
    return {(*FIRST, "logprob"): lambda value: value + by}


MESSAGES = {
    "mixes two models: m in line 1 and other in line 2": {("model",): "other"},
    "line 2 has no logprobs: ask for": {FIRST[:3]: None},
    r"line 2 can't be read \(KeyError: 'logprob'": {(*TOP, 1): {"token": "token_id:3"}},
    "line 2: the log-probabilities of a step are not sorted": {TOP: lambda top: top[::-1]},
    "line 2: the 6 probabilities of a step sum to 2.207277": {
        (*FIRST, "logprob"): -1.0, TOP: lambda top: [{**one, "logprob": -1.0} for one in top],
    },
    "line 2: the list of a step has token 7 twice": {
        TOP: lambda top: [{**one, "token": "token_id:7"} for one in top]
    },
    "line 2: a log-probability is 0.5, above 0": {(*TOP, 0, "logprob"): 0.5},
    "line 2: one of the 6 tokens of a step has a probability of 0": {(*TOP, -1, "logprob"): -9999.},
    "line 2 holds probabilities after sampling": {FIRST: lambda entry: {**entry, "prob": 0.5}},
    "line 2 holds a log-probability that is nan": {(*TOP, 0, "logprob"): float("nan")},
    "line 2 holds a log-probability that is '1'": {(*TOP, 0, "logprob"): "1"},
    r"line 2 can't be read \(TypeError": {TOP: 3},
    "line 2 was sampled in the backend": {
        ("__verbose",): {"generation_settings": {"backend_sampling": True}}
    },
    "line 2: the emitted token has a log-probability of .*, but in the list of": own(-2e-3),
}  # fmt: skip


ODD_ONES = [name for name in MESSAGES if re.search(r"not sorted|twice|in the list of", name)]


@pytest.mark.parametrize("message", MESSAGES)
def test_what_cannot_be_is_one_line(message, tmp_path):
    path = edited(written(tmp_path / "log.jsonl", "vllm chat", share=0.0), MESSAGES[message])
    if message in ODD_ONES:
        assert read(path).excluded == {"steps that contradict themselves": 1}
        path.write_text("\n" + path.read_text().splitlines()[1])
    with pytest.raises(PipelineError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_emitted_token_outside_the_list_is_not_above_it(tmp_path):
    path = tmp_path / "log.jsonl"
    assert read(edited(written(path, "vllm chat", share=0.0), own(-5e-4))).excluded == {}
    tops = [{"id": token, "logprob": value} for token, value in ((5, -0.1), (6, -3.0))]
    for value in (-4.0, -2.0):
        step = {"id": 7, "logprob": value, "top_logprobs": tops}
        path.write_text(json.dumps({"completion_probabilities": [step]}))
        if value == -4.0:
            assert read(path).k == 2
            continue
        with pytest.raises(PipelineError, match="of -2, but in the list of its step at most"):
            read(path)


def test_a_log_without_a_step_says_what_was_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    for nothing, counted in (("nonsense\n", "1 lines that are no JSON"), ("\n", "none")):
        path.write_text(nothing)
        with pytest.raises(PipelineError, match=f"no step with log-prob.*; left out: {counted}"):
            read(path)


def test_steps_that_are_left_out_part_an_answer(tmp_path):
    entries = ("completion_probabilities",)
    shorten = {
        (*entries, 9, "top_logprobs"): lambda top: top[:3], (*entries, 20, "top_logprobs"): [],
    }  # fmt: skip
    path = edited(written(tmp_path / "log.jsonl", "llama.cpp completion", share=0.0), shorten, 0)
    log = read(path)
    assert list(sizes(log).items())[:3] == [
        ("line-1", 9), ("line-1+10", 10), ("line-1+21", 9)]  # fmt: skip
    assert log.excluded == {
        "steps with fewer log-probabilities than the others": 1,
        "steps without log-probabilities": 1,
    }
    assert log.k == 6


def logged(path, values, emitted=None, engine="vllm chat"):
    """Write rows of full logarithms: the 20 largest of each, of one answer."""
    order = np.argsort(-values, axis=1, kind="stable")
    first = order[:, 0] if emitted is None else emitted
    steps = [
        (int(token), [(int(t), float(row[t])) for t in top[:20]])
        for token, row, top in zip(first, values, order, strict=True)
    ]
    path.write_text(ENGINES[engine]("a", steps))
    return path


def logits(steps, size=1000):
    rng = np.random.default_rng(1)
    return rng.gumbel(size=(steps, size)) * rng.gamma(2, 1.5, size=(steps, 1))


log_softmax = partial(scipy.special.log_softmax, axis=1)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_cut_off_tail_is_told(sampled, tmp_path):
    """top_k = 20 and logprobs = 20: one sampled token is the least of its list, so K is 19."""
    z = logits(60)
    cut = np.where(z >= -np.sort(-z, axis=1)[:, 19:20], z, -np.inf)
    order = np.argsort(-z, axis=1)
    emitted = order[:, 0].copy()
    emitted[3] = order[3, 19] if sampled else emitted[3]
    assert read(logged(tmp_path / "a", log_softmax(z), emitted), vocab_size=1000).k == 20 - sampled
    processed = logged(tmp_path / "b", log_softmax(cut), emitted)
    with pytest.raises(PipelineError, match="log-probabilities have all the mass, there and at"):
        read(processed, vocab_size=1000)


def test_an_emitted_token_tied_with_the_least_of_its_list_is_taken_out(tmp_path):
    """Tokens that are as probable once rounded may be missing between the two."""
    values = log_softmax(logits(60))
    order = np.argsort(-values, axis=1)
    emitted = order[:, 0].copy()
    emitted[3] = order[3, 19]
    values[3, order[3, 18]] = values[3, order[3, 19]]
    assert read(logged(tmp_path / "tied", values, emitted), vocab_size=1000).k == 19
    emitted[3] = order[3, 17]
    assert read(logged(tmp_path / "above", values, emitted), vocab_size=1000).k == 20


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda z: z - z.max() - 0.01, "leave .* to the 980 other tokens"),  # raw, below 0
        (lambda z: log_softmax(z) / np.log(2), "leave .* to the 980 other tokens"),
        (lambda z: log_softmax(z) / np.log(10), "of a step sum to"),
        (lambda z: log_softmax(z) - 0.01, "leave .* to the 980 other tokens"),  # shifted
        (lambda z: log_softmax(z), None),
        (lambda z: np.round(log_softmax(z), 3), None),
    ],
)
def test_values_that_are_no_probabilities(values, message, tmp_path):
    path = logged(tmp_path / "log", values(logits(60)))
    if message is None:
        assert read(path, vocab_size=1000).k == 20
        return
    with pytest.raises(PipelineError, match=message) as caught:
        read(path, vocab_size=1000)
    assert "\n" not in str(caught.value)


def test_the_mass_of_the_other_tokens_has_a_limit(tmp_path):
    """Two tokens of 0.6 and 0.1 leave 0.3: to 3 others of 0.1 each, and not to 2."""
    path = tmp_path / "log"
    tops = [(0, math.log(0.6)), (1, math.log(0.1))]
    path.write_text(vllm_chat("a", [(0, tops)]))
    assert read(path, vocab_size=5).k == 2
    with pytest.raises(PipelineError, match=r"leave 0\.3 to the 2 other tokens, and each"):
        read(path, vocab_size=4)


def test_lists_of_other_steps_are_told(tmp_path):
    values = log_softmax(logits(60))
    never = np.argsort(-values, axis=1)[:, 1]
    with pytest.raises(PipelineError, match="no step emits the most probable token"):
        read(logged(tmp_path / "log", values, never), vocab_size=1000)
    few = logged(tmp_path / "log", values[:2] * 0 - math.log(1000), np.array([500, 501]))
    assert read(few, vocab_size=1000).excluded == {}  # by chance


def rows_of(path, change):
    """Change the object of every line."""
    rows = list(map(json.loads, path.read_text().splitlines()))
    for row in rows:
        change(row)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("usage", [True, False])
def test_an_echoed_prompt_is_not_generated(usage, tmp_path):
    """echo=true: the answer begins with the prompt, whose first token has no log-probability."""

    def echo(row):
        logprobs = row["choices"][0]["logprobs"]
        size = len(logprobs["tokens"])
        logprobs["tokens"] = ["token_id:1"] * 3 + logprobs["tokens"]
        top = {"token_id:1": -3.0, "token_id:2": -3.5}
        logprobs["top_logprobs"] = [None, top, top, *logprobs["top_logprobs"]]
        logprobs["token_logprobs"] = [None, -3.0, -3.0, *logprobs["token_logprobs"]]
        if usage:
            row["usage"] = {"prompt_tokens": 3, "completion_tokens": size}

    path = tmp_path / "log"
    whole = read(written(path, "vllm completions"))
    rows_of(path, echo)
    if usage:
        log = read(path)
        assert (log.excluded, sizes(log)) == ({}, sizes(whole))
        return
    with pytest.raises(PipelineError, match="line 1 echoes its prompt, and does not say how long"):
        read(path)


@pytest.mark.parametrize("least", [-3.4028234663852886e38, -9999.0, -math.inf])
@pytest.mark.parametrize("engine", ["vllm chat", "vllm completions", "llama.cpp completion"])
def test_tokens_that_sampling_took_out_are_told(least, engine, tmp_path):
    """The emitted token has all the probability, as after top-p or a temperature near 0."""
    tops = [(0, 0.0), *((token, least) for token in range(1, 6))]
    path = tmp_path / "log"
    path.write_text(ENGINES[engine]("a", [(0, tops)] * 12))
    with pytest.raises(PipelineError, match="one of the 6 tokens of a step has a probability of 0"):
        read(path)


def test_short_lists_with_all_the_mass_are_told(tmp_path):
    """Tokens that top-p took out may be missing from the lists."""
    values = log_softmax(logits(60))
    order = np.argsort(-values, axis=1)
    steps = []
    for at, (row, ids) in enumerate(zip(values, order, strict=True)):
        kept = ids[:3] if at % 3 == 0 else ids[:20]
        cut = row[kept] - (np.log(np.exp(row[kept]).sum()) if at % 3 == 0 else 0)
        steps.append((int(ids[0]), list(zip(kept.tolist(), cut.tolist(), strict=True))))
    path = tmp_path / "log"
    path.write_text(vllm_chat("a", steps))
    with pytest.raises(PipelineError, match="a list that is shorter than the others has all the m"):
        read(path, vocab_size=1000)


def test_many_odd_steps_end_the_run(tmp_path):
    def swap(row):
        for entry in row["choices"][0]["logprobs"]["content"][::5]:
            entry["logprob"] -= 0.01

    path = rows_of(written(tmp_path / "log", "vllm chat", share=0.0), swap)
    with pytest.raises(PipelineError, match="line 1: the emitted token has a log-probability of"):
        read(path)


def test_answers_to_one_prompt_are_one_prompt(tmp_path):
    path = written(tmp_path / "log", "vllm chat", share=0.0)
    bodies = list(map(json.loads, path.read_text().splitlines()))
    prompts = [[1, 2], [3], [1, 2], [4]]
    rows = [
        {"custom_id": f"c{at}", "request": {"prompt": prompt}, "response": body}
        for at, (prompt, body) in enumerate(zip(prompts, bodies, strict=True))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    names = list(sizes(read(path)))
    assert names == ["c0", "c1", "c0#1", "c3"]
    assert prompts_of(names) == ["c0", "c1", "c0", "c3"]
