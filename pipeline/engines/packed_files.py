"""The text of a file that an engine wrote: unpacked from gzip, in UTF-8."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from pipeline.core.errors import PipelineError
from pipeline.core.files import regular

GZIP = b"\x1f\x8b"
OTHER_PACKERS = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PAR1": "Parquet",
    GZIP: "gzip, twice",
}
MAX_UNPACKING_RATIO = 50  # unpacked to packed bytes; logs have 5 to 20
FREE_BYTES = 64 * 2**20  # may be unpacked whatever the ratio
PIECE = 2**20  # bytes unpacked at once


def read_bytes(path: Path) -> bytes:
    """Return a file's content as UTF-8, unpacked from gzip and decoded from UTF-16 or UTF-32.

    Raises:
        PipelineError: the file can't be read, is damaged, unpacks to far more than a log would, or
            is packed in another way.
    """
    try:
        regular(path)
        data = path.read_bytes()
        if data.startswith(GZIP):
            data = _unpacked(path, len(data))
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"it is a damaged gzip file: {error}"
        raise PipelineError(f"{path} can't be read: {why}") from error
    for beginning, name in OTHER_PACKERS.items():
        if data.startswith(beginning):
            raise PipelineError(f"{path} can't be read: it is packed ({name}): unpack it first")
    encoding = json.detect_encoding(data[:4])
    if encoding.startswith("utf-8"):
        return data.removeprefix(b"\xef\xbb\xbf")
    return data.decode(encoding, errors="replace").encode(errors="replace")


def _unpacked(path: Path, packed: int) -> bytes:
    most = max(FREE_BYTES, MAX_UNPACKING_RATIO * packed)
    data = bytearray()
    with gzip.open(path) as file:
        while piece := file.read(PIECE):
            data += piece
            if len(data) > most:
                raise PipelineError(
                    f"{path} can't be read: its {packed:,} bytes unpack to more than {most:,}, as "
                    "no log does: unpack it yourself if that is right"
                )
    return bytes(data)


def decoded(data: bytes) -> str:
    """Return bytes as text; lines that are not UTF-8 become lines that are no JSON."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\n".join(map(_decoded_line, data.split(b"\n")))


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return "(not UTF-8)"
