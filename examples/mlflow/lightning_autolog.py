"""A Lightning module: MLflow logs its params, the metrics of every epoch and the model by itself, and Lightning's own
MLFlowLogger goes to the same Windlass run.

windlass run lightning_autolog.py
"""

import os

import lightning
import mlflow
import torch
from lightning.pytorch.loggers import MLFlowLogger
from torch.utils.data import DataLoader, TensorDataset

mlflow.pytorch.autolog()


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1, bias=False)

    def training_step(self, batch):
        features, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(features).squeeze(-1), targets)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


torch.manual_seed(1)
features = torch.randn(256, 8)
data = TensorDataset(features, features @ torch.arange(8.0))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=5,
    logger=MLFlowLogger(run_id=os.environ.get("MLFLOW_RUN_ID"), prefix="lightning"),
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), DataLoader(data, batch_size=64))
print(f"loss {trainer.callback_metrics['loss'].item():.6f}")
