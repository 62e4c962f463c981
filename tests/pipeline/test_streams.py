"""Certificates of many steps: chunks certified by several threads, written in order."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.rules import Additive, Mars, StrictGreedy
from analysis.topk import TopK
from benchmarks.certificates import synthetic
from pipeline.execution.threads import in_order
from pipeline.stages import certificates
from pipeline.stages.certificates import write_certificates
from pipeline.store import columns

RULES = [StrictGreedy(), Additive(0.1), Mars(0.9)]
STEPS, CHUNK = 5 * 64 + 3, 64


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order_and_few_items_are_held(threads: int) -> None:
    """The first item takes longest; were results not in order, it would come last."""
    read = itertools.count()

    def items() -> Iterator[int]:
        for item in range(20):
            next(read)
            yield item

    def work(item: int) -> int:
        time.sleep(0.05 if item == 0 else 0.0)
        return -item

    found = in_order(work, items(), threads)
    assert next(found) == 0
    assert next(read) <= threads + 1
    assert list(found) == [-item for item in range(1, 20)]


def test_two_threads_work_side_by_side() -> None:
    both = threading.Barrier(2, timeout=20)
    assert list(in_order(lambda _: both.wait() >= 0, range(2), 2)) == [True, True]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_ends_the_stream_where_it_arose(threads: int) -> None:
    def work(item: int) -> int:
        if item == 4:
            raise ValueError("the fifth")
        return item

    found = in_order(work, itertools.count(), threads)  # an endless stream ends, too
    assert [next(found) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="the fifth"):
        next(found)


def chunks() -> Iterator[tuple[pa.RecordBatch, TopK]]:
    whole = synthetic(STEPS, 16)
    for start in range(0, STEPS, CHUNK):
        rows = np.arange(start, min(start + CHUNK, STEPS))
        keys = {"prompt_id": (rows // 128).astype(str), "position": (rows % 128).astype(np.int32)}
        yield pa.RecordBatch.from_pydict(keys), whole[start : start + CHUNK]


def written(folder: Path, threads: int, steps: int = STEPS) -> list[Path]:
    """The files of all rules."""
    writers, paths = [], []
    for at in range(len(RULES)):
        (folder / str(at)).mkdir(parents=True)
        paths.append(folder / str(at) / "data.parquet")
        writers.append(pq.ParquetWriter(paths[-1], columns.schema("certificates")))
    write_certificates(chunks(), RULES, "kl", writers, steps, threads)
    for writer in writers:
        writer.close()
    return paths


def test_files_do_not_depend_on_the_threads(tmp_path: Path) -> None:
    one, four = (written(tmp_path / str(threads), threads) for threads in (1, 4))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in four]
    assert pq.ParquetFile(one[0]).num_row_groups == 6
    assert len({path.read_bytes() for path in one}) == len(RULES)


def test_a_large_file_has_fewer_row_groups_and_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk a row group up to GROUPS of them, two beyond, and so on."""
    plain = written(tmp_path / "plain", 2)
    monkeypatch.setattr(certificates, "GROUPS", 3)
    rows = 3 * 8192
    for steps, groups in ((rows - 1, 6), (rows, 3), (2 * rows, 2)):
        large = written(tmp_path / str(steps), 2, steps)
        assert pq.ParquetFile(large[0]).num_row_groups == groups
        for one, other in zip(plain, large, strict=True):
            assert pq.read_table(one).equals(pq.read_table(other))
