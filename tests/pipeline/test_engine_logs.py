"""Logs of engines in the formats that they write, whole and damaged."""

import json
import math
from functools import partial

import numpy as np
import pytest
import scipy.special

from analysis import TopK, certify
from analysis.rules import Additive, StrictGreedy, Tree, Typical
from pipeline.core.errors import PipelineError
from pipeline.engines.answers.logs import prompt_id, read_log, stacked
from tests.analysis.test_truncation import V, distributions

STARTS = [0, 30, 31, 70]
RULES = [StrictGreedy(), Additive(0.1), Typical(0.1, 0.09), Tree(2)]
log_softmax = partial(scipy.special.log_softmax, axis=1)

# What writes a log gets the steps of an answer: emitted token, [(token, log-probability), ...].


def with_emitted(token, top):
    """Return the values of a step's tokens, the emitted one first, as vLLM lists them."""
    return dict([(token, dict(top).get(token, top[-1][1] - 1.0)), *top])


def in_choice(name, logprobs):
    choice = {"index": 0, "logprobs": logprobs, "finish_reason": "length"}
    return json.dumps({"id": name, "model": "m", "choices": [choice], "usage": {"total_tokens": 9}})


def vllm_chat(name, answer):
    """vLLM, chat: the emitted token first, one list of as many as were asked for."""

    def entry(token, value):
        text = f"token_id:{token}"
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
        return {"id": token, "token": ".", "bytes": [46], "logprob": value}

    found = [
        {**entry(token, with_emitted(token, top)[token]), "top_logprobs": [entry(*p) for p in top]}
        for token, top in answer
    ]
    return json.dumps({"content": "...", "stop": True, "completion_probabilities": found})


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


def steps_of(values, k=20, emitted=None):
    """The steps of rows of logarithms: their k largest; the first is emitted if none is given."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    tops = np.take_along_axis(values, order, axis=1).tolist()
    first = order[:, 0] if emitted is None else emitted
    rows = zip(first.tolist(), order.tolist(), tops, strict=True)
    return [(token, list(zip(ids, top, strict=True))) for token, ids, top in rows]


def logged(path, steps, write=vllm_chat, starts=(0,)):
    """Write steps as answers."""
    ends = zip(starts, [*starts[1:], len(steps)], strict=True)
    lines = [write(f"answer-{at}", steps[begin:end]) for at, (begin, end) in enumerate(ends)]
    path.write_text("\n".join(lines) + "\n")
    return path


def written(path, write=vllm_chat, k=6, digits=7, share=0.0):
    """Write the stored steps as four answers with k log-probabilities a step, rounded."""
    dist, emitted = stored(share)
    values = np.full(dist.ids.shape, -np.inf)
    np.put_along_axis(values, dist.ids, np.round(dist.log_probs, digits), axis=1)
    return logged(path, steps_of(values, k, emitted), write, STARTS)


def logits(steps, size=1000):
    rng = np.random.default_rng(1)
    return rng.gumbel(size=(steps, size)) * rng.gamma(2, 1.5, size=(steps, 1))


def read(path, k=256, vocab_size=V, error=None):
    return read_log(path, k, vocab_size, error)


def sizes(log):
    return {prompt_id(key): len(steps) for key, steps in log.trajectories.items()}


def contained(found, exact):
    return bool(np.all((found.lower <= exact.lower) & (exact.upper <= found.upper)))


@pytest.mark.parametrize("write", [vllm_chat, vllm_completions, llama_completion])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_every_engine_is_read_back(write, share, tmp_path):
    dist, emitted = stored(share)
    path = written(tmp_path / "log.jsonl", write, share=share)
    log = read(path)
    assert list(sizes(log).values()) == [30, 1, 39, 30]
    assert stacked(log.trajectories)["token_id"].tolist() == emitted.tolist()
    # a sampled token that vLLM put first may stand for the last of the list in the chat format
    assert log.k == (5 if write is vllm_chat and share else 6)
    assert (log.answers, log.excluded, log.error) == (4, {}, 1e-4)
    back = read_back(log, V)
    assert np.array_equal(back.ids, dist.ids[:, : log.k])
    assert read(path, k=3).k == 3
    assert contained(certify(back, RULES), certify(dist, RULES))


def test_the_digits_give_the_error(tmp_path):
    path = written(tmp_path / "log.jsonl", vllm_completions, digits=4)
    assert read(path).error == pytest.approx(1.4e-4)
    assert read(path, error=1e-2).error == 1e-2
    path = written(tmp_path / "log.jsonl", vllm_completions, digits=9)
    assert read(path).error == 1e-4  # of two float32 passes
    path = written(tmp_path / "log.jsonl", llama_completion, digits=9)
    assert read(path, vocab_size=V).error == 1e-4  # V 2^-24 is less
    assert read(path, vocab_size=2**20).error == pytest.approx(2.0**-4)


def test_tokens_without_ids_are_told_by_their_bytes_and_order(tmp_path):
    path, values = tmp_path / "log.jsonl", zip("abb", (-0.5, -1.5, -2.5), strict=True)
    tops = [{"token": one, "bytes": [*one.encode()], "logprob": value} for one, value in values]
    path.write_text(in_choice("a", {"content": [tops[1] | {"top_logprobs": tops}] * 2}))
    log = read(path)
    assert (log.k, log.excluded, log.given_ids) == (3, {}, False)
    assert log.texts == {(b"a", 0): 0, (b"b", 0): 1, (b"b", 1): 2}
    assert stacked(log.trajectories)["token_id"].tolist() == [1, 1]


def test_lists_with_the_emitted_token_besides_are_longer_by_one(tmp_path):
    """Most steps emit a token outside their top: those of the others are not left out."""
    top = [(0, math.log(0.5)), (1, math.log(0.2))]
    log = read(logged(tmp_path / "log", [(5, top)] * 4 + [(0, top)], vllm_completions))
    assert (log.k, log.excluded, list(sizes(log).values())) == (2, {}, [5])


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({("model",): "other"}, "mixes two models: m in line 1 and other in line 2"),
        ({FIRST[:3]: None}, "line 2 has no logprobs"),
        ({FIRST[:3]: "no"}, r"line 2 can't be read \(AttributeError"),
        ({(*FIRST, "logprob"): -1.0, TOP: lambda top: [{**one, "logprob": -1.0} for one in top]},
         "line 2: the 6 probabilities of a step sum to 2.207277"),
        ({(*TOP, 0, "logprob"): 0.5}, "line 2: a log-probability is 0.5, above 0"),
        ({(*TOP, -1, "logprob"): -9999.0}, "line 2: one of the 6 tokens .* a probability of 0"),
        ({FIRST: lambda entry: {**entry, "prob": 0.5}}, "line 2 holds probabilities after sampl"),
        ({("__verbose",): {"generation_settings": {"backend_sampling": True}}}, "in the backend"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(changes, message, tmp_path):
    path = edited(written(tmp_path / "log.jsonl"), changes)
    with pytest.raises(PipelineError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def own(by):
    return lambda step: step | {"logprob": step["logprob"] + by}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (own(-2e-3), "the emitted token has a log-probability of .*, but in the list of"),
        (lambda step: step | {"top_logprobs": step["top_logprobs"][::-1]}, "are not sorted"),
        (lambda step: step | {"top_logprobs": [
            one | {"token": "token_id:7"} for one in step["top_logprobs"]]}, "token 7 twice"),
    ],
)  # fmt: skip
def test_a_step_that_contradicts_itself_is_left_out_and_many_are_an_error(
    change, message, tmp_path
):
    path = edited(written(tmp_path / "log.jsonl"), {FIRST: change})
    assert read(path).excluded == {"steps that contradict themselves": 1}
    for line in (0, 2, 3):
        edited(path, {FIRST[:4]: lambda steps: [*map(change, steps[:8]), *steps[8:]]}, line)
    with pytest.raises(PipelineError, match=f"line 1: .*{message}"):
        read(path)


def without_key(entry):
    return {"token": entry["token"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(*TOP, 1, "logprob"): math.nan}, "line 1 holds a log-probability that is nan"),
        ({(*TOP, 1, "logprob"): None}, "line 1 holds a log-probability that is None"),
        ({(*TOP, 1, "logprob"): "-0.5"}, "line 1 holds a log-probability that is '-0.5'"),
        ({(*TOP, 1, "logprob"): math.inf}, "line 1 holds a log-probability that is inf"),
        ({(*TOP, 1): without_key}, "line 1 holds a log-probability that is None"),
        ({(*FIRST, "logprob"): math.nan}, "line 1 holds a log-probability that is nan"),
        ({(*TOP, 1, "token"): None}, "line 1 holds TypeError"),
        ({(*TOP, 1, "id"): -1}, "line 1 holds a token id that is -1"),
        ({TOP: 7}, "line 1 holds TypeError"),
        ({FIRST: "nothing"}, "line 1 holds TypeError"),
    ],
)
def test_a_step_with_a_value_that_is_none_is_left_out_and_many_are_an_error(
    change, message, tmp_path
):
    path = edited(written(tmp_path / "log.jsonl"), change, 0)
    log = read(path)
    assert log.excluded == {"steps with a value that can't be read": 1}
    assert next(iter(sizes(log).items())) == ("answer-0+1", 29)
    first = json.loads(path.read_text().splitlines()[0])["choices"][0]["logprobs"]["content"][0]
    for line in range(4):  # now all steps
        edited(path, {FIRST[:4]: lambda steps: [first] * len(steps)}, line)
    with pytest.raises(PipelineError, match=message):
        read(path)


@pytest.mark.parametrize("bad", [9, 10, 11, 12])
def test_at_most_a_tenth_of_the_steps_may_be_unreadable(bad, tmp_path):
    """Of 100: 10 are left out, and 11 end the run, in the completions format as well."""
    path = written(tmp_path / "log.jsonl", vllm_completions)
    place = ("choices", 0, "logprobs", "top_logprobs")
    changes = {(*place, at): lambda top: dict.fromkeys(top) for at in range(bad)}
    edited(path, changes, 0)
    if bad <= 10:
        assert read(path).excluded == {"steps with a value that can't be read": bad}
        return
    with pytest.raises(PipelineError, match="line 1 holds a log-probability that is None"):
        read(path)


@pytest.mark.parametrize(
    "name", ["temp_scaled_logprobs", "top_p_normalized_logprobs", "post_sampling_probs",
             "backend_sampling"]
)  # fmt: skip
@pytest.mark.parametrize("nest", [None, "sampling_params", "extra_body"])
def test_a_request_for_processed_values_is_refused(name, nest, tmp_path):
    path = written(tmp_path / "log.jsonl")
    lines = path.read_text().splitlines()
    for asked in (False, True):
        request = {name: asked} if nest is None else {nest: {name: asked}}
        answers = [{"request": request, "response": json.loads(line)} for line in lines]
        path.write_text("\n".join(map(json.dumps, answers)))
        if not asked:
            assert read(path).answers == 4
            continue
        with pytest.raises(PipelineError, match=f"line 1 .*{name}=false"):
            read(path)


def test_the_remedy_is_that_of_the_endpoint(tmp_path):
    path = tmp_path / "log"
    for answer, remedy in [
        ({"choices": [{"message": {}}]}, "no logprobs: ask for logprobs=true and top_logprobs=N$"),
        ({"choices": [{"text": "x"}]}, "no logprobs: ask for logprobs=N$"),
        ({"choices": [{"token_ids": [1]}]}, "no logprobs: ask for .*all others"),
        ({"content": "x", "stop": True}, "no completion_probabilities: ask for n_probs=N$"),
        ({"text": "x", "meta_info": {"id": "a"}}, "is of SGLang's /generate.* ask its /v1/compl"),
    ]:
        path.write_text(json.dumps(answer))
        with pytest.raises(PipelineError, match=remedy):
            read(path)


@pytest.mark.parametrize(
    ("write", "engine", "other"),
    [(vllm_chat, "vLLM", "llama"), (vllm_completions, "SGLang", "llama"),
     (llama_completion, "llama.cpp", "vLLM")],
)  # fmt: skip
def test_processed_values_get_the_remedy_of_their_engine(write, engine, other, tmp_path):
    steps = steps_of(log_softmax(logits(60)))
    token, top = steps[30]
    steps[30] = token, [*top[:-1], (top[-1][0], -3.4e38)]
    with pytest.raises(PipelineError, match="a probability of 0") as caught:
        read(logged(tmp_path / "masked", steps, write), vocab_size=1000)
    assert engine in str(caught.value)
    assert other not in str(caught.value)
    z = logits(60)
    cut = log_softmax(np.where(z < -np.sort(-z, axis=1)[:, 19:20], -np.inf, z))
    with pytest.raises(PipelineError, match="have all the mass") as caught:
        read(logged(tmp_path / "cut", steps_of(cut), write), vocab_size=1000)
    assert engine in str(caught.value)
    assert other not in str(caught.value)


def test_the_emitted_token_outside_the_list_is_not_above_it(tmp_path):
    path = tmp_path / "log.jsonl"
    assert read(edited(written(path), {FIRST: own(-5e-4)})).excluded == {}
    step = {"id": 7, "top_logprobs": [{"id": 5, "logprob": -0.1}, {"id": 6, "logprob": -3.0}]}
    path.write_text(json.dumps({"completion_probabilities": [step | {"logprob": -4.0}]}))
    assert read(path).k == 2
    path.write_text(json.dumps({"completion_probabilities": [step | {"logprob": -2.0}]}))
    with pytest.raises(PipelineError, match="of -2, but in the list of its step at most"):
        read(path)


def test_steps_that_are_left_out_part_an_answer(tmp_path):
    path = written(tmp_path / "log.jsonl", llama_completion)
    entries = ("completion_probabilities",)
    shorten = {(*entries, 9, "top_logprobs"): lambda top: top[:3],
               (*entries, 20, "top_logprobs"): []}  # fmt: skip
    log = read(edited(path, shorten, 0))
    first = {"line-1": 9, "line-1+10": 10, "line-1+21": 9}
    assert list(sizes(log).items())[:3] == list(first.items())
    assert log.excluded == {
        "steps with fewer log-probabilities than the others": 1,
        "steps without log-probabilities": 1,
    }
    assert log.k == 6


def test_an_emitted_token_that_is_the_least_of_its_list_is_taken_out(tmp_path):
    """Those that are as probable once rounded may be missing between it and the others."""
    path, values = tmp_path / "log", log_softmax(logits(60))
    order = np.argsort(-values, axis=1)
    emitted = order[:, 0].copy()
    for rank, k in ((17, 20), (19, 19)):
        emitted[3] = order[3, rank]
        assert read(logged(path, steps_of(values, emitted=emitted)), vocab_size=1000).k == k
    values[3, order[3, 18]] = values[3, order[3, 19]]
    assert read(logged(path, steps_of(values, emitted=emitted)), vocab_size=1000).k == 19


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda z: log_softmax(z) - 0.01, "leave .* to the 980 other tokens"),  # shifted
        (lambda z: log_softmax(z) / np.log(10), "of a step sum to"),
        (lambda z: log_softmax(np.where(z < -np.sort(-z, axis=1)[:, 19:20], -np.inf, z)),
         "log-probabilities have all the mass, there and at"),  # top_k = 20 and logprobs = 20
        (lambda z: np.round(log_softmax(z), 3), None),
    ],
)  # fmt: skip
def test_values_that_are_no_probabilities_of_the_whole_vocabulary(values, message, tmp_path):
    path = logged(tmp_path / "log", steps_of(values(logits(60))))
    if message is None:
        assert read(path, vocab_size=1000).k == 20
        return
    with pytest.raises(PipelineError, match=message):
        read(path, vocab_size=1000)


def test_the_mass_of_the_other_tokens_has_a_limit(tmp_path):
    """Two tokens of 0.6 and 0.1 leave 0.3: to 3 others of 0.1 each, and not to 2."""
    path = logged(tmp_path / "log", [(0, [(0, math.log(0.6)), (1, math.log(0.1))])])
    assert read(path, vocab_size=5).k == 2
    with pytest.raises(PipelineError, match=r"leave 0\.3 to the 2 other tokens, and each"):
        read(path, vocab_size=4)


def test_short_lists_with_all_the_mass_are_told(tmp_path):
    """Tokens that top-p took out may be missing from the lists."""
    steps = steps_of(log_softmax(logits(60)))
    for at in range(0, 60, 3):
        token, top = steps[at]
        mass = math.log(sum(math.exp(value) for _, value in top[:3]))
        steps[at] = token, [(one, value - mass) for one, value in top[:3]]
    with pytest.raises(PipelineError, match="a list that is shorter than the others has all the m"):
        read(logged(tmp_path / "log", steps), vocab_size=1000)


def test_lists_of_other_steps_are_told(tmp_path):
    path, values = tmp_path / "log", log_softmax(logits(60))
    never = steps_of(values, emitted=np.argsort(-values, axis=1)[:, 1])
    with pytest.raises(PipelineError, match="no step emits the most probable token"):
        read(logged(path, never), vocab_size=1000)
    by_chance = steps_of(values[:2] * 0 - math.log(1000), emitted=np.array([500, 501]))
    assert read(logged(path, by_chance), vocab_size=1000).excluded == {}


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": 3}])
def test_an_echoed_prompt_is_not_generated(usage, tmp_path):
    """echo=true: the answer begins with the prompt, whose first token has no log-probability."""
    path = written(tmp_path / "log", vllm_completions)
    whole, top = read(path), {"token_id:1": -3.0, "token_id:2": -3.5}
    ahead = {"tokens": ["token_id:1"] * 3, "top_logprobs": [None, top, top],
             "token_logprobs": [None, -3.0, -3.0]}  # fmt: skip
    for line in range(4):
        edited(path, {("usage",): usage, **{
            (*FIRST[:3], name): lambda old, more=more: more + old for name, more in ahead.items()
        }}, line)  # fmt: skip
    if usage:
        log = read(path)
        assert (log.excluded, sizes(log)) == ({"tokens of echoed prompts": 12}, sizes(whole))
        return
    with pytest.raises(PipelineError, match="line 1 echoes its prompt, and does not say how long"):
        read(path)


def test_prompts_alone_are_no_steps(tmp_path):
    """echo=true and max_tokens=0, as of a harness that scores texts."""
    path = written(tmp_path / "log", vllm_completions)
    for line, size in enumerate((30, 1, 39, 30)):
        edited(path, {("usage",): {"prompt_tokens": size, "completion_tokens": 0}}, line)
    with pytest.raises(PipelineError, match=r"no step .*; left out: 100 tokens of echoed prompts"):
        read(path)


def test_a_first_token_without_its_own_value_is_no_echo(tmp_path):
    path = written(tmp_path / "log", vllm_completions)
    log = read(edited(path, {(*FIRST[:3], "token_logprobs", 0): None}, 0))
    assert (log.excluded, list(sizes(log).values())) == ({}, [30, 1, 39, 30])
