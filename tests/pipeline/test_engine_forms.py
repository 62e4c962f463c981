"""Files of engines in every form: read whole, or refused with the name of the form."""

import gzip
import io
import json
import tracemalloc
import zipfile

import pytest

from pipeline.core.errors import PipelineError
from pipeline.engines.answers.draft_counts import read_answer_counts
from pipeline.engines.answers.json_text import json_values
from pipeline.engines.answers.logs import stacked
from tests.pipeline import test_engine_logs as logs


def batch(answers):
    """The lines of vLLM's run-batch and of OpenAI's batches."""
    return [
        {"id": "vllm-1", "custom_id": f"own-{at}",
         "response": {"status_code": 200, "request_id": "r", "body": answer}}
        for at, answer in enumerate(answers)
    ]  # fmt: skip


def side_by_side(answers, **form):
    return "".join(json.dumps(answer, **form) for answer in answers)


def events(chunks, more=""):
    lines = [f"{more}data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"])


FORMS = {  # answers as their objects: text
    "lines": lambda answers: "\n".join(map(json.dumps, answers)),
    "blank lines": lambda answers: "\r\n \r\n\n".join(map(json.dumps, answers)),
    "array over lines": lambda answers: "[\n" + ",\n".join(map(json.dumps, answers)) + "\n]\n",
    "array in a line": json.dumps,
    "array, indented": lambda answers: json.dumps(answers, indent=2),
    "two arrays": lambda answers: json.dumps(answers[:1]) + "\n" + json.dumps(answers[1:]),
    "objects over lines": lambda answers: "\n".join(json.dumps(one, indent=1) for one in answers),
    "objects over lines, joined": lambda answers: side_by_side(answers, indent="\t"),
    "side by side": side_by_side,
    "one line, then several": lambda answers: "\n".join(
        json.dumps(one, indent=at % 2 or None) for at, one in enumerate(answers)
    ),
    "marks within": lambda answers: "\n".join("\ufeff" + json.dumps(one) for one in answers),
    "record separators": lambda answers: "".join(f"\x1e{json.dumps(one)}\n" for one in answers),
    "batch": lambda answers: "\n".join(map(json.dumps, batch(answers))),
    "batch in an array": lambda answers: json.dumps(batch(answers)),
    "events": events,
    "events over lines": lambda answers: ": comment\n\n" + "".join(
        "event: message\nid: 7\n"
        + "".join(f"data: {line}\r\n" for line in json.dumps(one, indent=1).split("\n")) + "\n"
        for one in answers
    ),
}  # fmt: skip
ENCODINGS = {
    "UTF-8 with its mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16 with its mark": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "UTF-16 without": lambda text: text.encode("utf-16-le"),
    "UTF-16, the other way": lambda text: text.encode("utf-16-be"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip in pieces": lambda text: b"".join(
        gzip.compress(line.encode()) for line in text.splitlines(keepends=True)
    ),
    "gzip of UTF-16": lambda text: gzip.compress(text.encode("utf-16")),
}


def objects(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_equal(log, other):
    """Whether logs have the same steps in the same trajectories, their names aside."""
    assert (log.answers, log.excluded, log.k, log.error) == (
        other.answers, other.excluded, other.k, other.error
    )  # fmt: skip
    assert list(logs.sizes(log).values()) == list(logs.sizes(other).values())
    one, two = (stacked(each.trajectories) for each in (log, other))
    return all((one[name] == two[name]).all() for name in ("token_id", "top_ids", "log_probs"))


WRITERS = [logs.vllm_chat, logs.vllm_completions, logs.llama_completion]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", WRITERS)
def test_every_form_is_read_whole(form, write, tmp_path):
    path = logs.written(tmp_path / "log.jsonl", write)
    plain, text = logs.read(path), FORMS[form](objects(path))
    path.write_text(text)
    assert is_equal(logs.read(path), plain)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", ["lines", "array over lines", "events"])
def test_every_encoding_is_read_whole(encoding, form, tmp_path):
    path = logs.written(tmp_path / "log.jsonl")
    plain, text = logs.read(path), FORMS[form](objects(path))
    path.write_bytes(ENCODINGS[encoding](text))
    assert is_equal(logs.read(path), plain)


def test_answers_without_a_name_in_one_line_get_one_each(tmp_path):
    path = logs.written(tmp_path / "log.jsonl", logs.llama_completion)
    path.write_text(json.dumps(objects(path)))
    assert list(logs.sizes(logs.read(path))) == ["line-1", "line-1.1", "line-1.2", "line-1.3"]
    path.write_text("\n" + path.read_text())
    assert list(logs.sizes(logs.read(path)))[:2] == ["line-2", "line-2.1"]


def test_lines_are_those_of_the_file():
    text = '\n{"a":\n 1} {"b": 2}\nnot\n[{"c": 3},\n{"d": 4}]\n\n{"e": 5}'
    broken = []
    found = [(*place, *value) for *place, value in json_values(text, broken)]
    assert found == [(2, 0, "a"), (3, 0, "b"), (5, 0, "c"), (6, 0, "d"), (8, 0, "e")]
    assert broken == [4]


@pytest.mark.parametrize("key", ["prompt", "token_ids"])
def test_answers_of_generate_to_one_prompt_belong_together(key, tmp_path):
    """vLLM's /inference/v1/generate takes token ids, and has request_id and no text."""
    path = logs.written(tmp_path / "log.jsonl")
    answers = []
    for at, answer in enumerate(objects(path)):
        body = {"request_id": f"g{at}", "choices": answer["choices"]}
        answers.append({"request": {key: [1, at // 2]}, "response": body})
    path.write_text("\n".join(map(json.dumps, answers)))
    assert list(logs.sizes(logs.read(path))) == ["g0", "g0#1", "g2", "g2#1"]


# Streams


def chunked(answer):
    """Return the chunks of an answer: one a step, then what stands beside the choices."""
    (choice,) = answer["choices"]
    logprobs = choice["logprobs"]
    size = len(next(iter(logprobs.values())))
    rest = {key: value for key, value in answer.items() if key != "choices"}
    chunks = []
    for at in range(size):
        part = {name: values[at : at + 1] for name, values in logprobs.items()}
        ends = "length" if at == size - 1 else None
        one = {"index": choice["index"], "logprobs": part, "finish_reason": ends}
        chunks.append({"id": answer["id"], "model": "m", "choices": [one]})
    return [*chunks, rest | {"choices": []}]


def native_chunks(answer, slot=0):
    """The chunks of llama.cpp's /completion, the last of which has the counts."""
    entries = answer["completion_probabilities"]
    chunks = [
        {"index": 0, "content": "x", "tokens": [entry["id"]], "stop": False, "id_slot": slot,
         "tokens_predicted": at, "completion_probabilities": [entry]}
        for at, entry in enumerate(entries, start=1)
    ]  # fmt: skip
    counts = {"predicted_n": len(entries), "draft_n": 4, "draft_n_accepted": 2}
    last = {"index": 0, "content": "", "tokens": [], "stop": True, "id_slot": slot,
            "tokens_predicted": len(entries), "timings": counts, "stop_type": "limit"}  # fmt: skip
    return [*chunks, last]


def interleaved(streams):
    """One chunk of each stream in turn, as long as it has some."""
    longest = max(map(len, streams))
    return [stream[at] for at in range(longest) for stream in streams if at < len(stream)]


def one_after_another(streams):
    return [chunk for stream in streams for chunk in stream]


def as_lines(chunks):
    return "\n".join(map(json.dumps, chunks))


def with_words(chunks):
    return events(chunks, ": keep-alive\n\nevent: completion\nretry: 10\n")


@pytest.mark.parametrize("text", [events, as_lines, with_words, json.dumps])
@pytest.mark.parametrize("order", [one_after_another, interleaved])
@pytest.mark.parametrize("write", WRITERS)
def test_a_stream_is_read_as_the_answer_at_once(write, order, text, tmp_path):
    path = logs.written(tmp_path / "log.jsonl", write)
    plain, answers = logs.read(path), objects(path)
    if write is logs.llama_completion:
        streams = [native_chunks(one, slot) for slot, one in enumerate(answers)]
    elif write is logs.vllm_chat:
        kind = {"object": "chat.completion.chunk"}
        streams = [[kind | chunk for chunk in chunked(one)] for one in answers]
    else:
        streams = list(map(chunked, answers))
    path.write_text(text(order(streams)))
    assert is_equal(logs.read(path), plain)


def test_counts_in_the_last_chunk_are_those_of_the_answer(tmp_path):
    """Usage, metrics and timings come once all tokens are there, beside no choices."""
    path = tmp_path / "stream"
    choice = {"index": 0, "text": "x", "finish_reason": None}
    one = {"id": "s", "object": "text_completion", "choices": [choice]}
    ends = one | {"choices": [choice | {"finish_reason": "length"}]}
    drafts = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3,
              "acceptance_histogram": [1, 0, 0, 1]}  # fmt: skip
    last = one | {"choices": [], "usage": {"completion_tokens": 6},
                  "metrics": {"speculative_decoding": drafts}}  # fmt: skip
    for chunks in ([one, one, ends, last], [one, ends, last, last], [ends, last]):
        path.write_text(events(chunks))
        counts = read_answer_counts(path)
        assert (counts.engine, counts.emitted, counts.drafts, counts.accepted) == ("vLLM", 5, 2, 3)
        assert (len(counts.answers), counts.excluded) == (1, {})
    path.write_text(as_lines(native_chunks({"completion_probabilities": [{"id": 5}] * 9})))
    counts = read_answer_counts(path)
    assert (counts.engine, counts.emitted, counts.accepted) == ("llama.cpp", 8, 2)
    assert [answer.tokens for answer in counts.answers.values()] == [[5] * 9]


def test_a_stream_of_sglang_repeats_what_came_before(tmp_path):
    meta = {"id": "a", "spec_verify_ct": 1, "completion_tokens": 2, "finish_reason": None}
    last = meta | {"spec_verify_ct": 43, "completion_tokens": 106, "finish_reason": {"type": "x"}}
    path = tmp_path / "stream"
    path.write_text(events([{"text": "x", "meta_info": each} for each in (meta, meta, last)]))
    counts = read_answer_counts(path)
    assert (counts.engine, counts.emitted, counts.drafts) == ("SGLang", 105, 43)
    assert (len(counts.answers), counts.excluded) == (1, {})


@pytest.mark.parametrize("write", [logs.vllm_chat, logs.vllm_completions])
def test_choices_of_a_stream_are_told_apart(write, tmp_path):
    path = logs.written(tmp_path / "log.jsonl", write)
    answers = objects(path)
    for index, answer in enumerate(answers):
        answer["id"] = "one"
        answer["choices"][0]["index"] = index
    path.write_text(events(interleaved(list(map(chunked, answers)))))
    log = logs.read(path)
    assert logs.sizes(log) == {"one": 30, "one#1": 1, "one#2": 39, "one#3": 30}


@pytest.mark.parametrize("write", [logs.vllm_completions, logs.llama_completion])
def test_a_stream_that_was_cut_ends_where_the_next_begins(write, tmp_path):
    """And one that was saved twice is one answer given again."""
    chunks = native_chunks if write is logs.llama_completion else chunked
    path = logs.written(tmp_path / "log.jsonl", write)
    first, _, third, _ = map(chunks, objects(path))
    path.write_text(events([*first[:7], *third]))
    assert list(logs.sizes(logs.read(path)).values()) == [7, 39]
    if write is logs.vllm_completions:
        path.write_text(events([*first, *first]))
        log = logs.read(path)
        assert logs.sizes(log) == {"answer-0": 30}
        assert log.excluded == {"answers given again": 1}


def test_events_without_an_id_are_chunks(tmp_path):
    """One stream behind the other, as of a server that gives no ids."""
    path = logs.written(tmp_path / "log.jsonl", logs.vllm_completions)
    answers = objects(path)
    streams = [[{"choices": chunk["choices"]} for chunk in chunked(answer)] for answer in answers]
    path.write_text(events(one_after_another(streams)))
    assert list(logs.sizes(logs.read(path)).values()) == [30, 1, 39, 30]


def test_streams_of_one_slot_that_are_mixed_are_refused(tmp_path):
    path = logs.written(tmp_path / "log.jsonl", logs.llama_completion)
    first, _, third, _ = map(native_chunks, objects(path))
    path.write_text(events(interleaved([first, third])))
    with pytest.raises(PipelineError, match=r"log\.jsonl holds .* from line 3 on, .* are mixed"):
        logs.read(path)


@pytest.mark.parametrize("write", [logs.vllm_chat, logs.llama_completion])
def test_a_chunk_without_log_probabilities_is_a_step_without(write, tmp_path):
    """As of a drafted token: what follows it does not follow the step before it."""
    path = logs.written(tmp_path / "log.jsonl", write)
    if write is logs.llama_completion:
        chunks = native_chunks(objects(path)[0])
        del chunks[9]["completion_probabilities"]
    else:
        chunks = chunked(objects(path)[0])
        chunks[9]["choices"][0] |= {"logprobs": None, "delta": {"content": "x"}}
    path.write_text(events(chunks))
    log = logs.read(path)
    assert list(logs.sizes(log).values()) == [9, 20]
    assert log.excluded == {"steps without log-probabilities": 1}


@pytest.mark.parametrize(
    "damage",
    [
        {"choices": [{"index": 0, "logprobs": "x", "finish_reason": None}]},
        {"choices": [{"index": [], "delta": 3, "finish_reason": None}]},
        {"choices": [3]},
        {"content": "", "stop": False, "tokens": 3, "completion_probabilities": 4},
        {"content": "", "stop": False, "tokens_predicted": "x"},
        {"content": 3, "stop": [], "tokens_predicted": -1},
        {"meta_info": {}},
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_a_damaged_chunk_is_no_traceback(damage, times, tmp_path):
    path = tmp_path / "stream"
    for more in ({}, {"id": "s"}, {"object": "x.chunk"}):
        path.write_text(events([damage | more] * times))
        with pytest.raises(PipelineError):
            logs.read(path)


# What is refused as a whole


def zipped(data):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("log.jsonl", data)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda _: b"id,token,logprob\na,1,-0.5\n", r"holds a table \(CSV\)"),
        (lambda _: b"id\ttoken\na\t1\n", r"holds a table \(CSV\)"),
        (lambda _: b"<!DOCTYPE html>\n<p>502</p>\n", "holds HTML or XML"),
        (lambda _: b"HTTP/1.1 200 OK\ncontent-type: x\n", "holds HTTP responses with th"),
        (lambda _: b"# HELP vllm:x y\nvllm:x 1\n", "holds a page of /metrics"),
        (lambda _: b"{'id': 'a', 'choices': None}\n", "holds Python's dicts"),
        (lambda _: b"\1\2\3\0PNG", "holds binary data"),
        (lambda _: b"INFO started\n", "holds text that begins with 'INFO started'"),
        (lambda _: b"\xff\xfe\xfd\n" * 3, "holds "),
        (lambda _: b'{"prompt": "a", "n": 1}\n', "holds JSON objects with the keys prompt, n"),
        (lambda _: b'{"answers": [{"id": 1}]}', "holds JSON objects with the keys answers"),
        (lambda data: data.replace(b"\n", b"\ntime=1\nx\n"), "holds .* 8 lines that are no JSON"),
        (lambda data: b"[" + data.replace(b"\n", b",\n"), "holds a JSON array, .* off in line 5"),
        (lambda data: (b"[" + data.replace(b"\n", b",\n"))[:-200], "array, .* off in line 4"),
        (lambda data: b"[" + data + b"]", "holds a JSON array, .* breaks off in line 2"),
        (zipped, r"it is packed \(zip\)"),
        (lambda data: gzip.compress(gzip.compress(data)), r"it is packed \(gzip, twice\)"),
        (lambda _: b"{\n" * 300, "over several lines that breaks off"),
    ],
)  # fmt: skip
def test_another_form_is_refused_by_name(form, message, tmp_path):
    path = logs.written(tmp_path / "log.jsonl")
    path.write_bytes(form(path.read_bytes()))
    for read in (logs.read, read_answer_counts):
        with pytest.raises(PipelineError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("bad", "refused"), [(3, False), (4, False), (5, True)])
def test_more_lines_than_not_must_be_answers(bad, refused, tmp_path):
    """Of four answers: beside four lines that are none they are read, beside five they are not."""
    path = logs.written(tmp_path / "log.jsonl")
    whole = path.read_text()
    for line in ("nonsense", '{"prompt": "x"}', "[1]", '{"id": "torn'):
        path.write_text(whole + f"{line}\n" * bad)
        if refused:
            with pytest.raises(PipelineError, match="and no answers that can be read, or few"):
                logs.read(path)
        else:
            log = logs.read(path)
            assert (log.answers, list(log.excluded.values())) == (4, [bad])


def test_errors_of_the_server_are_no_other_form(tmp_path):
    path = logs.written(tmp_path / "log.jsonl")
    path.write_text(path.read_text() + '{"error": {"message": "busy"}}\n' * 9)
    assert logs.read(path).excluded == {"answers with an error": 9}


def test_torn_lines_take_no_others_along(tmp_path):
    """A line that ends where JSON may go on, over several lines or not."""
    path = logs.written(tmp_path / "log.jsonl")
    first, second, third, fourth = path.read_text().splitlines()
    for torn in ('{"id": "x", "choices": [', '{"id": "x",', '{"id": "x', first[:-40]):
        path.write_text("\n".join([first, torn, second, third, fourth]))
        log = logs.read(path)
        assert (log.answers, log.excluded) == (4, {"lines that are no JSON": 1})
    torn = json.dumps(json.loads(second), indent=1)[:-60]
    path.write_text("\n".join([first, torn, third, json.dumps(json.loads(fourth), indent=1)]))
    log = logs.read(path)
    assert (log.answers, log.excluded) == (3, {"lines that are no JSON": 1})


def test_packed_files_unpack_to_a_limit(tmp_path, monkeypatch):
    """A log of many equal answers is read; what unpacks to more than any log is not."""
    path = logs.written(tmp_path / "log.jsonl")
    data = path.read_bytes()
    monkeypatch.setattr("pipeline.engines.packed_files.FREE_BYTES", len(data))
    path.write_bytes(gzip.compress(data))
    assert logs.read(path).answers == 4
    monkeypatch.setattr("pipeline.engines.packed_files.FREE_BYTES", len(data) - 1)
    monkeypatch.setattr("pipeline.engines.packed_files.MAX_UNPACKING_RATIO", 1)
    with pytest.raises(
        PipelineError, match=r"log\.jsonl can't be read: its .* bytes unpack to more"
    ):
        logs.read(path)


def test_a_bomb_is_not_unpacked(tmp_path):
    """1 GiB of empty lines in 1 MB: at most about the limit is held at once."""
    path = tmp_path / "bomb.gz"
    piece = gzip.compress(b"\n" * 2**24)
    path.write_bytes(piece * 64)
    tracemalloc.start()
    with pytest.raises(PipelineError, match="bytes unpack to more than"):
        logs.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * 64 * 2**20
