"""A loop with Accelerate as people write it. It finds the processes by itself.

windlass run --nproc 2 accelerate_train.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(1)
features = torch.randn(256, 8)
data = TensorDataset(features, features @ torch.arange(8.0))

model = torch.nn.Linear(8, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, batch_size=256 // accelerator.num_processes)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for _ in range(20):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

mean = accelerator.gather(loss.detach()).mean().item()
print(f"process {accelerator.process_index} of {accelerator.num_processes}: loss {mean:.6f}")
accelerator.end_training()
