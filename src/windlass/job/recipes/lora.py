"""Fine-tune a Hugging Face language model with low-rank adapters (LoRA): its own weights stay as they are.

    windlass run --recipe lora --gpus 2 -p model=/models/llama -p data=chats.jsonl
    python -m windlass.job.recipes.lora          # alone; params from WINDLASS_PARAMS

`model` is a folder as `save_pretrained` writes it; nothing is downloaded. `data` is a .jsonl file of objects with
`prompt` and `completion` (only completions are learned) or `text`, or a plain text file. The adapter is saved as the
library `peft` reads it. Reads from top to bottom: settings, adapters, data, training, saving.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from windlass import job
from windlass.core.errors import InvalidInput
from windlass.core.settings import Count, Positive, Share, Whole
from windlass.job.parallel.parallelize import Parallel
from windlass.job.refusals import run_recipe
from windlass.job.settings import settings_of
from windlass.job.weights import whole_weights

# ---- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    model: str  # a folder as save_pretrained writes it
    data: str  # a .jsonl file, or a text
    rank: Count = 8  # of the matrices that are learned
    alpha: Positive = 16.0  # their product counts alpha / rank times
    dropout: Share = 0.0  # of what the adapters read
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")  # linear layers, by the end of their names
    sequence: Count = 512  # tokens of a sample at most
    batch: Count = 8  # samples per step, of all processes together
    steps: Count = 200
    lr: Positive = 2e-4
    warmup: Whole = 10  # steps
    seed: Whole = 1  # of first weights and the order of samples


# ---- adapters --------------------------------------------------------------------------------------------------------


class LoRALinear(nn.Module):
    """A linear layer that stays as it is, plus a product of two thin matrices that is learned and begins at zero."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.base = base
        # Learned in fp32, whatever the model is kept in: small steps would be lost in bf16.
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = nn.Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = self.base(x)
        learned: Tensor = self.lora_B(self.lora_A(self.dropout(x).to(self.lora_A.weight.dtype)))
        return whole + (learned * self.scale).to(whole.dtype)


def apply_adapters(model: nn.Module, config: Settings) -> list[str]:
    """Freezes the model and puts an adapter beside each layer meant; their names."""
    model.requires_grad_(False)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    meant = {name: module for name, module in linear.items() if name.rpartition(".")[2] in config.targets}
    if not meant:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise InvalidInput(f"no linear layer is called {' or '.join(config.targets)}; there are: {', '.join(known)}")
    for name, module in meant.items():
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, LoRALinear(module, config.rank, config.alpha, config.dropout))
    return list(meant)


class Logits(nn.Module):
    """From tokens to logits: what is left of a Hugging Face model's many ways to call it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """What is learned. Checkpoints of all else would be as large as the model, which is in its folder already."""
        return {name: value for name, value in super().state_dict(*args, **options).items() if _is_learned(name)}


def _is_learned(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def load_model(folder: str) -> tuple[nn.Module, Callable[[str], list[int]]]:
    """The model, and what makes tokens of a text: its own tokenizer, or without one the text's bytes."""
    if not (Path(folder) / "config.json").exists():
        raise InvalidInput(
            f"model is {folder!r}, but must be a folder with a config.json, as save_pretrained writes it"
        )
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise InvalidInput(
            f"the recipe `lora` reads models with the library transformers, which cannot be loaded here: {error}",
            hint="pip install transformers",
        ) from None
    transformers.utils.logging.disable_progress_bar()  # it would fill the log
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    if any((Path(folder) / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return model, lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if model.config.vocab_size < 256:
        raise InvalidInput(f"{folder} has no tokenizer, and {model.config.vocab_size} tokens are too few for bytes")
    return model, lambda text: list(text.encode())


# ---- data ------------------------------------------------------------------------------------------------------------

NOT_LEARNED = -100  # a target that does not count, as in cross_entropy

Sample = tuple[Tensor, Tensor]


def read_samples(path: Path, tokens_of: Callable[[str], list[int]], sequence: int) -> list[Sample]:
    """Inputs and targets, which are the inputs moved by one; all of the same length."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"data is {str(path)!r}, which cannot be read as a text: {error}") from None
    if path.suffix == ".jsonl":
        lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
        samples = [_sample(line, f"{path}:{number}", tokens_of, sequence) for number, line in lines]
        if not samples:
            raise InvalidInput(f"{path} has no samples; each line is a JSON object: {FORMS}")
        return samples
    tokens = torch.tensor(tokens_of(text))
    length = min(sequence, len(tokens) - 1)
    if length < 1:
        raise InvalidInput(f"{path} has {len(tokens)} tokens: too few to learn from")
    return [
        (tokens[first : first + length], tokens[first + 1 : first + length + 1])
        for first in range(0, len(tokens) - length, length)
    ]


FORMS = '{"text": …}, or {"prompt": …, "completion": …}'


def _sample(line: str, where: str, tokens_of: Callable[[str], list[int]], sequence: int) -> Sample:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"{where} is no JSON: {error}; each line is an object: {FORMS}") from None
    if not isinstance(record, dict):
        raise InvalidInput(f"{where} is no JSON object, but {line.strip():.40}; it must be one: {FORMS}")
    key = "text" if "text" in record else "completion"
    if key not in record:
        raise InvalidInput(f"{where} has neither `text` nor `completion`; it has: {', '.join(sorted(record))}")
    texts = {name: record.get(name, "") for name in ("prompt", key)}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise InvalidInput(f"{where}: `{name}` is {value!r:.40}, but must be a text")
    prompt = tokens_of(texts["prompt"]) if key == "completion" else []
    tokens = prompt + tokens_of(texts[key])
    targets = [NOT_LEARNED] * max(0, len(prompt) - 1) + tokens[max(1, len(prompt)) :]
    if not any(target != NOT_LEARNED for target in targets[:sequence]):
        # Such samples would count among those of a batch, and a batch of nothing else has no loss.
        why = f"the prompt alone has {len(prompt)} tokens, of the {sequence} that `sequence` allows"
        if len(prompt) <= sequence:
            why = f"its `{key}` has too few tokens"
        raise InvalidInput(f"nothing can be learned from {where}: {why}", hint="leave the line out, or change it")
    return _padded(tokens[:-1], targets, sequence)


def _padded(inputs: list[int], targets: list[int], sequence: int) -> Sample:
    # What is added comes last, so that nothing before it can see it, and it is not learned.
    rest = max(0, sequence - len(inputs))
    return torch.tensor(inputs[:sequence] + [0] * rest), torch.tensor(targets[:sequence] + [NOT_LEARNED] * rest)


def batches(samples: list[Sample], config: Settings, parallel: Parallel) -> Iterator[Sample]:
    """This process's part of every batch, without end; drawn from all samples, so that any number of them will do.

    Each row of targets ends with how many tokens are learned in the whole batch, for the loss.
    """
    each = parallel.plan.check_batch(config.batch) * parallel.plan.accumulate
    learned = [int((targets != NOT_LEARNED).sum()) for _, targets in samples]
    draw = torch.Generator().manual_seed(config.seed)
    while True:
        # Every process draws the whole batch and takes its part.
        chosen = torch.randint(len(samples), (config.batch,), generator=draw).tolist()
        mine = [samples[index] for index in chosen[parallel.data_rank * each : (parallel.data_rank + 1) * each]]
        count = torch.full((each, 1), sum(learned[index] for index in chosen))
        targets = torch.stack([targets for _, targets in mine])
        yield torch.stack([inputs for inputs, _ in mine]), torch.cat([targets, count], dim=1)


# ---- training --------------------------------------------------------------------------------------------------------


def loss_for(batch: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Of some of the `batch` rows of a step, such that the mean over parts of equally many rows is the mean over all
    tokens that are learned in the step: a plan that cuts the batch otherwise learns the same."""

    def loss_of(logits: Tensor, counted: Tensor) -> Tensor:
        targets, learned = counted[:, :-1], counted[0, -1]
        added = F.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=NOT_LEARNED, reduction="sum"
        )
        return added * (batch / len(counted)) / learned

    return loss_of


def learned_only(parallel: Parallel, config: Settings) -> Any:
    learned = [parameter for parameter in parallel.parameters() if parameter.requires_grad]
    return job.optimizer(parallel, torch.optim.AdamW, params=learned, lr=config.lr, weight_decay=0.0)


def main() -> float:
    """The loss of the last step."""
    config = settings_of(Settings)
    job.init()
    torch.manual_seed(config.seed)  # the same first adapters everywhere
    model, tokens_of = load_model(config.model)
    adapted = apply_adapters(model, config)
    samples = read_samples(Path(config.data), tokens_of, config.sequence)
    if job.is_main:
        learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        total = sum(parameter.numel() for parameter in model.parameters())
        print(f"{len(samples):,} samples; {learned:,} of {total:,} parameters are learned, in {len(adapted)} layers")
    trainer = job.Trainer(
        steps=config.steps,
        schedule=lambda step: min((step + 1) / max(1, config.warmup), 1.0, (config.steps - step) / config.steps + 0.1),
        tokens_per_step=config.batch * len(samples[0][0]),
        checkpoints={} if job.session().keeps_checkpoints else None,
    )
    fit = trainer.fit(
        Logits(model),
        lambda parallel: batches(samples, config, parallel),
        loss=loss_for(config.batch),
        optimizer=lambda parallel: learned_only(parallel, config),
    )
    save_adapter(fit.parallel, config)
    # There is none where an earlier attempt has done all steps.
    loss = float(fit.loss) if fit.loss is not None else math.nan
    if job.is_main:
        reached = (
            f"loss {loss:.4f} after {fit.step} steps" if fit.loss is not None else f"all {fit.step} steps were done"
        )
        print(f"{reached}; the adapter is in {job.output_dir / 'adapter'}")
    return loss


# ---- saving ----------------------------------------------------------------------------------------------------------


def save_adapter(parallel: Parallel, config: Settings) -> None:
    """A folder that `peft.PeftModel.from_pretrained(model, folder)` reads."""
    weights = whole_weights(parallel, _is_learned)
    if weights is None:
        return
    folder = job.output_dir / "adapter"
    folder.mkdir(exist_ok=True)
    named = {f"base_model.{name}": tensor.contiguous() for name, tensor in weights.items()}
    try:
        safetensors: Any = importlib.import_module("safetensors.torch")
    except ImportError:
        torch.save(named, folder / "adapter_model.bin")  # the name that peft gave it before
    else:
        safetensors.save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.model,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": list(config.targets),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    run_recipe(main)
