"""A Lightning module and Trainer as people write them. Lightning finds the processes by itself.

windlass run --nproc 2 lightning_train.py
"""

import logging
import os
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def training_step(self, batch, _index):
        features, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(features).squeeze(-1), targets)
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


torch.manual_seed(1)
features = torch.randn(256, 8)
data = TensorDataset(features, features @ torch.arange(8.0))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
    max_epochs=20,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Regression()
trainer.fit(model, DataLoader(data, batch_size=256 // trainer.world_size))
loss = trainer.callback_metrics["loss"].item()
print(f"process {trainer.global_rank} of {trainer.world_size}: loss {loss:.6f}")
