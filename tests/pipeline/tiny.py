"""A random Qwen3 of a few thousand weights with a tokenizer, written as a model directory."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from analysis.statistics.bootstrap import Resampling
from conf.schema import Device, Execution, HeadConfig, ModelConfig, Prompts
from pipeline.core.files import file_digest
from pipeline.core.stage import Artifact, Identity, Json, ModelSpec, Out, Runtime, Stage, Task
from pipeline.core.store import Store
from pipeline.models.language_model import LanguageModel
from pipeline.models.loading import wrap
from pipeline.settings.methods import Method, method_entries
from pipeline.stages import decoding, distributions, drafts, prompts

TEMPLATE = (
    "{%- for message in messages -%}<|user|>{{ message.content }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|answer|>{%- endif -%}"
    "{%- if not enable_thinking -%}<|end|>{%- endif -%}"
)
SPECIAL = ["<|pad|>", "<|user|>", "<|end|>", "<|answer|>"]  # ids 0 to 3; answers end with 2
VOCABULARY = 300
RUNTIME = Runtime("tiny", Resampling(50, 0.95, 0))


def new_qwen3(size: int, width: int, inner: int, heads: tuple[int, int], layers: int = 2) -> Any:
    """A randomly initialised Qwen3 with tied embeddings; heads of queries, and of keys."""
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=size, hidden_size=width, num_hidden_layers=layers, intermediate_size=inner,
        num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=32,
        tie_word_embeddings=True, max_position_embeddings=1024, rope_theta=10_000.0,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    ))  # fmt: skip


def random_model(vocab_size: int, seed: int = 0, layers: int = 2) -> LanguageModel:
    """A random Qwen3 whose distributions are neither flat nor certain, every time the same."""
    torch.manual_seed(seed)
    module = new_qwen3(vocab_size, 32, 48, (2, 1), layers)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim == 2:
                weight.mul_(12)
    return wrap(module, "tiny", torch.device("cpu"))


def save_model(
    model: Any, directory: Path, made: Tokenizer, template: str, eos: str, pad: str, **options: Any
) -> None:
    """Write a model and its tokenizer as a directory that `load_model` reads."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=eos, pad_token=pad, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = template
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory, **options)
    tokenizer.save_pretrained(directory)


def byte_tokenizer(
    text: str = "the answer to a question is a token and then another", size: int = VOCABULARY
) -> Tokenizer:
    """A byte-level tokenizer, trained on one sentence."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def used(
    directory: Path | str,
    key: str = "targets.tiny",
    *,
    label: str = "tiny",
    device: str = "cpu",
    batch: int | None = None,
    head: HeadConfig | None = None,
    identity: Identity | None = None,
    **changes: Any,
) -> ModelSpec:
    """A model in a directory, or a head, on one thread; `changes` of its configuration."""
    content = Path(directory) / "model.safetensors"
    own = Identity(content=file_digest(content)) if content.is_file() else Identity()
    settings = ModelConfig(
        path=str(directory or "nowhere"), revision=None, label=label, dtype="float32",
        head_dtype="float32", attention="sdpa",
    ).model_copy(update=changes)  # fmt: skip
    place = Device(name=device, threads=1, batch=batch, timings="any")
    runs = place, Execution(engine="inline", workers=None)
    return ModelSpec(key, identity or own, settings, *runs, head)


def write_model(directory: Path, seed: int = 0) -> Path:
    """Write a random model."""
    module = random_model(VOCABULARY, seed).module
    save_model(module, directory, byte_tokenizer(), TEMPLATE, "<|end|>", "<|pad|>")
    return directory


def write_prompts(path: Path, count: int) -> Path:
    """Write `count` prompts of different lengths in UltraChat's schema."""
    texts = [" ".join(["question", *ascii_lowercase[: 3 + 5 * i % 17]]) for i in range(count)]
    rows = [
        {"prompt": text, "prompt_id": f"id{i}", "messages": [{"role": "user", "content": text}]}
        for i, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prompts_node(model: Path, place: Path, /, **changes: Any) -> Task:
    """A task of stage prompts from files in a place; `changes` of `prompts`."""
    files = place.rglob("*") if place.is_dir() else [place]
    content = "".join(file_digest(file) for file in sorted(files) if file.is_file())
    settings = Prompts(
        source=str(place), revision=None, split=None, count=6, min_tokens=3, max_tokens=100,
        seed=0, template="chat", enable_thinking=False,
    )  # fmt: skip
    wanted = settings.model_copy(update=changes)
    entries = wanted.model_dump(exclude={"source", "revision"})
    entries |= {"tokenizer": {}, "source": {"content": content}}
    runtime = prompts.PromptsRuntime(
        **vars(RUNTIME) | {"path": str(model)}, revision=None, prompts=wanted
    )
    return Task(prompts.STAGE, "tiny", entries, {}, runtime)


def dump_node(model: Path, above: Task, batch: int | None = 4, **changes: Any) -> Task:
    """A task of stage distributions; `changes` of the model's configuration or of its own."""
    of_model = {name: changes.pop(name) for name in ModelConfig.model_fields if name in changes}
    return dump_of(used(model, batch=batch, **of_model), {"prompts": above}, **changes)


def dump_of(model: ModelSpec, inputs: Mapping[str, Task] | None = None, **changes: Any) -> Task:
    """A task of stage distributions on a model; `changes` of its settings."""
    settings: Json = {"model": model.entries, "steps": 12, "k": 20, "temperature": 0.0, "seed": 0}
    settings |= {"certified_temperature": 1.0, **changes}
    runtime = replace(RUNTIME, label=model.settings.label, models=(model,))
    return Task(distributions.STAGE, "tiny", settings, inputs or {}, runtime)


def drafts_of(target: ModelSpec, drafter: ModelSpec, inputs: Mapping[str, Task]) -> Task:
    settings: Json = {"target": target.entries, "drafter": drafter.entries, "temperature": 1.0}
    runtime = replace(RUNTIME, models=(target, drafter))
    return Task(drafts.STAGE, "tiny", settings, inputs, runtime)


def decoding_node(
    target: ModelSpec, drafter: ModelSpec, methods: Sequence[Method] = (), **changes: Any
) -> Task:
    """A task of stage decoding without inputs; its label is that of the target's key."""
    settings: Json = {"target": target.entries, "drafter": drafter.entries}
    settings |= {"prompts": 3, "steps": 6, "seed": 0, "lookup": 2, "lookup_match": "latest"}
    settings |= changes
    settings["methods"] = [method_entries(method) for method in methods]
    runtime = replace(RUNTIME, models=(target, drafter))
    return Task(decoding.STAGE, target.key.partition(".")[2], settings, {}, runtime)


def planned(stage: Stage, label: str, settings: Json) -> Task:
    """A task of one model's artifacts without anything else."""
    return Task(stage, label, settings, {}, RUNTIME)


def built(task: Task, root: Path) -> Artifact:
    return Store(root).get(task)


def publish(task: Task, store: Store, write: Callable[[Out], None]) -> Artifact:
    """Publish what a function writes as the artifact of a task."""
    stage = replace(task.stage, compute=lambda _, __, out: write(out))
    return store.get(replace(task, stage=stage))
