"""Boosted trees whose params, metric of every round and model MLflow logs by itself, into the Windlass run.

windlass run xgboost_autolog.py
"""

import mlflow
import numpy as np
import xgboost

mlflow.autolog()

rng = np.random.default_rng(1)
features = rng.normal(size=(512, 4))
rows = xgboost.DMatrix(features, features[:, 0] * features[:, 1] + features[:, 2])
history = {}
xgboost.train(
    {"max_depth": 4, "nthread": 1},
    rows,
    num_boost_round=20,
    evals=[(rows, "train")],
    evals_result=history,
    verbose_eval=False,
)
print(f"rmse {history['train']['rmse'][-1]:.6f}")
