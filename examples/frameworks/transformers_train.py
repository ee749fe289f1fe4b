"""A tiny Llama trained with the Transformers Trainer as people write it. It finds the processes by itself.

windlass run --nproc 2 transformers_train.py
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded: the model is made here

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0
)
model = LlamaForCausalLM(config)
tokens = torch.randint(1, 64, (32, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    output_dir="output",
    max_steps=10,
    per_device_train_batch_size=16 // int(os.environ.get("WORLD_SIZE", 1)),
    learning_rate=1e-2,
    logging_steps=10,
    save_strategy="no",
    report_to=[],
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
loss = trainer.train().training_loss
print(f"process {arguments.process_index} of {arguments.world_size}: loss {loss:.6f}")
