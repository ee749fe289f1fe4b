"""A tiny Llama trained with the Transformers Trainer, which reports to MLflow, and so to the Windlass run.

windlass run transformers_report.py
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: the model is made here

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0
)
tokens = torch.randint(1, 64, (32, 16))
arguments = TrainingArguments(
    output_dir="output",
    max_steps=10,
    per_device_train_batch_size=16,
    learning_rate=1e-2,
    logging_steps=2,
    save_strategy="no",
    report_to="mlflow",
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
)
data = [{"input_ids": row, "labels": row} for row in tokens]
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data)
print(f"loss {trainer.train().training_loss:.6f}")
