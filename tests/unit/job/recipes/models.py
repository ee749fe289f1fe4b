"""A tiny Llama with random weights, as a folder of Hugging Face's."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from tests.conftest import skip_unless_ci


def save_llama(folder: Path) -> Path:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that transformers finds
            import transformers
    except ImportError as missing:
        skip_unless_ci("transformers", missing)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,  # so that there is something in its states to learn from
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder
