"""A scikit-learn model whose params, scores and files MLflow logs by itself, into the Windlass run.

windlass run sklearn_autolog.py
"""

import mlflow
import numpy as np
from sklearn.ensemble import RandomForestRegressor

mlflow.autolog()

rng = np.random.default_rng(1)
features = rng.normal(size=(256, 4))
targets = features[:, 0] * features[:, 1] + features[:, 2]
model = RandomForestRegressor(n_estimators=20, max_depth=4, random_state=1).fit(features, targets)
print(f"r2 {model.score(features, targets):.4f}")
