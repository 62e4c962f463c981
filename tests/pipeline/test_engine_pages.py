"""Pages of /metrics: read series by series, in other encodings and with older names."""

import math

import pytest

from pipeline import engine
from pipeline.core.errors import PipelineError
from pipeline.engines.metrics_pages import page_of, read_page
from pipeline.engines.speed.runs import read_run
from tests.engines import metrics, vllm_page

BEFORE = {"0": 1000, "1": 1000}  # drafts of each replica


def pair(folder, before, after, **others):
    """Write two pages of replicas that counted so many drafts; return the later."""
    (folder / "run.before.txt").write_text(metrics(before))
    (folder / "run.after.txt").write_text(metrics(after, **others))
    return folder / "run.after.txt"


def test_the_difference_of_two_pages_is_that_of_their_series(tmp_path):
    """A replica that came up between them counts from 0."""
    counts = page_of(pair(tmp_path, BEFORE, {"0": 1500, "1": 1000, "2": 200}))
    assert (counts.drafts, counts.drafted, counts.least_passes) == (700, 1400, 700)
    assert counts.by_place == [0.8 * 700, 0.5 * 700]
    assert counts.requests == 35


@pytest.mark.parametrize(
    ("after", "others", "message"),
    [
        # the sum of all series grew
        (
            {"0": 100, "1": 3000},
            {},
            r'counts less than run\.before\.txt.*engine="0".*fell from 2,350 to 235',
        ),
        ({"0": 999, "1": 3000}, {}, r'counts less than .*engine="0"'),
        ({"1": 3500}, {}, r'lacks vllm:\w+\{engine="0".* of run\.before\.txt: a server was lost'),
        ({"0": 1000, "1": 1000}, {"model": "n"}, r'lacks .*model_name="m"'),
        # counted more since it was restarted than before
        ({"0": 2000, "1": 2000}, {"created": 2.0}, r"restarted after run\.before\.txt .*_created"),
        ({"0": 2000, "1": 2000}, {"process": 9.0}, r"restarted .*process_start_time_seconds"),
    ],
)
def test_a_restarted_or_lost_replica_gives_no_numbers(after, others, message, tmp_path, capsys):
    path = pair(tmp_path, BEFORE, after, **others)
    with pytest.raises(SystemExit) as error:
        engine.main([str(path)])
    assert str(path) in str(error.value)
    with pytest.raises(PipelineError, match=message):
        page_of(path)
    assert capsys.readouterr().out == ""


def test_counters_that_stand_still_are_no_restart(tmp_path):
    assert page_of(pair(tmp_path, BEFORE, {"0": 1000, "1": 1001})).drafts == 1


def test_a_mean_may_fall(tmp_path):
    """llama.cpp's busy slots per step: 2 in 100 steps, then 1 in each of 300 more."""
    for name, steps, slots in (("before", 100, 2), ("after", 400, 1.25)):
        counters = {
            "n_decode_total": steps,
            "n_busy_slots_per_decode": slots,
            "tokens_predicted_total": steps,
            "tokens_predicted_seconds_total": steps,
        }
        lines = (f"llamacpp:{key} {value}\n" for key, value in counters.items())
        (tmp_path / f"run.{name}.txt").write_text("".join(lines))
    counts = page_of(tmp_path / "run.after.txt")
    assert (counts.least_passes, counts.load) == (300, 1)


def test_a_restart_beside_answers_is_told(tmp_path):
    """As for a page alone: the answers' pages are those of two servers."""
    pair(tmp_path, BEFORE, {"0": 100, "1": 3000})
    (tmp_path / "run.json").write_text('{"answers_of_pages": 1}')
    answer = '{"choices": [{"text": "x"}], "usage": {"completion_tokens": 9}}\n'
    (tmp_path / "run.jsonl").write_text(answer)
    with pytest.raises(PipelineError, match="a server was restarted"):
        read_run(tmp_path / "run.jsonl")


def with_headers(text):
    tunnel = "HTTP/1.1 200 Connection established\r\n\r\n"
    return (tunnel + "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n" + text).encode()


def with_both_names(text):
    """As vLLM 0.10 wrote them."""
    lines = [line for line in text.splitlines(keepends=True) if "inter_token_latency" in line]
    return (text + "".join(lines).replace("inter_token_latency", "time_per_output_token")).encode()


@pytest.mark.parametrize(
    "encode",
    [
        str.encode,
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: text.encode("utf-16-be"),
        with_headers,
        lambda text: text.replace("inter_token_latency", "time_per_output_token").encode(),
        with_both_names,
    ],
)
def test_a_page_may_be_saved_in_other_ways(encode, tmp_path):
    path = tmp_path / "page"
    path.write_bytes(encode(metrics(BEFORE)))
    counts = page_of(path)
    assert (counts.drafts, counts.least_passes, counts.emitted) == (2000, 2000, 4600)
    assert counts.seconds == pytest.approx(40)


def test_lines_are_counted_from_the_first_header(tmp_path):
    (tmp_path / "page").write_bytes(with_headers("# HELP vllm:x y\nvllm:x\n"))
    with pytest.raises(PipelineError, match="line 7 is no metric"):
        page_of(tmp_path / "page")


def test_a_page_without_the_counter_of_drafts_tells_the_rest(tmp_path, capsys):
    """Versions of vLLM before 0.9 count drafted and accepted tokens alone."""
    lines = metrics(BEFORE).splitlines(keepends=True)
    (tmp_path / "page").write_text("".join(line for line in lines if "num_drafts" not in line))
    counts = page_of(tmp_path / "page")
    assert math.isnan(counts.drafts)
    assert (counts.drafted, counts.least_passes, counts.drafting) == (4000, 2000, True)
    engine.main([str(tmp_path / "page")])
    screen = capsys.readouterr().out
    assert "- 0.625" in screen
    assert "page lacks the counter of drafts" in screen


@pytest.mark.parametrize(("drafted", "drafting"), [(None, None), (0, False), (900, True)])
def test_older_pages_of_llama_cpp_do_not_say_that_nothing_was_drafted(
    drafted, drafting, tmp_path, capsys
):
    text = "llamacpp:tokens_predicted_total 640\nllamacpp:n_decode_total 300\n"
    if drafted is not None:
        text += f"llamacpp:spec_decode_num_draft_tokens_total {drafted}\n"
    counts = read_page("page", text)
    assert (counts.drafting, counts.least_passes, counts.emitted) == (drafting, 300, 640)
    (tmp_path / "page").write_text(text)
    engine.main([str(tmp_path / "page")])
    assert ("-: take a newer llama.cpp" in capsys.readouterr().out) == (drafting is None)


def test_a_branchs_names_beside_the_usual_ones_are_not_added():
    text = "llamacpp:spec_decode_num_draft_tokens_total 900\nllamacpp:draft_tokens_total 900\n"
    assert read_page("page", text).drafted == 900


def test_vllm_counts_no_drafts_where_it_makes_none():
    counts = read_page("page", 'vllm:generation_tokens_total{engine="0"} 9\n')
    assert (counts.drafting, counts.drafts) == (False, 0)


@pytest.mark.parametrize(("emitted", "drafting"), [(101, False), (102, None)])
def test_more_tokens_than_passes_show_drafts_that_are_not_counted(emitted, drafting):
    """As of data-parallel vLLM before it counted drafts there."""
    text = vllm_page(passes=100, seconds=1.0, requests=3, emitted=emitted)
    assert read_page("page", text).drafting is drafting


def test_the_load_is_requests_a_step():
    """Prefills are passes, too: 2,000 passes and 100 prefills in 300 steps of the engine."""
    text = metrics(BEFORE) + 'vllm:iteration_tokens_total_count{engine="0"} 300\n'
    assert read_page("page", text).load == pytest.approx(7)
    slots = "llamacpp:n_decode_total 300\nllamacpp:n_busy_slots_per_decode 2.5\n"
    assert read_page("page", slots).load == pytest.approx(2.5)
    assert math.isnan(read_page("page", metrics(BEFORE)).load)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sglang:spec_verify_calls_total 5", "is a page of SGLang"),
        ("tgi_queue_size 5", "has no counts of drafts or passes"),
        ('vllm:generation_tokens_total{engine="0} 5', "line 2 is no metric"),
        ('vllm:generation_tokens_total{engine="0",engine="1"} 5', "line 2 is no metric"),
        ("vllm:generation_tokens_total 1_000", "line 2 is no metric"),
        ("vllm:generation_tokens_total NaN", "line 2: .* is nan"),
        ("vllm:generation_tokens_total " + "9" * 5000, "line 2: .* is inf"),
        ('vllm:x{a="' + "b" * 20_000 + '"} 5', "line 2 is no metric"),
        ("vllm:x" + "{" * 9000, "line 2 is no metric"),
    ],
)
def test_damaged_pages_are_one_short_line(line, message, tmp_path):
    (tmp_path / "page").write_text(f"# HELP x y\n{line}\n")
    with pytest.raises(PipelineError, match=message) as error:
        page_of(tmp_path / "page")
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_labels_are_printed_as_text(tmp_path):
    """An escape sequence in a model's name or a label does not reach the terminal."""
    path = pair(tmp_path, {"0": 10, "\x1b[31m": 10}, {"0": 20})
    with pytest.raises(PipelineError, match="lacks") as error:
        page_of(path)
    assert "\x1b" not in str(error.value)
    assert read_page("page", metrics({"0": 1}, model="\x1b[31m")).model == "\\u001b[31m"
