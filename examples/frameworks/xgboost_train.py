"""Gradient-boosted trees in XGBoost over all processes of a run: each has a part of the rows, all get the same trees.

windlass run --nproc 2 xgboost_train.py
"""

import os

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
address = {
    "dmlc_tracker_uri": os.environ.get("MASTER_ADDR", "127.0.0.1"),
    "dmlc_tracker_port": int(os.environ.get("MASTER_PORT", 0)),
}

# XGBoost's processes meet at a tracker: the first one opens it where the launcher says that all meet.
tracker = None
if rank == 0:
    host = address["dmlc_tracker_uri"]
    tracker = RabitTracker(host_ip=host, port=address["dmlc_tracker_port"], n_workers=world)
    tracker.start()
    address = {key: value for key, value in tracker.worker_args().items() if key in address}

rng = np.random.default_rng(1)
features = rng.normal(size=(512, 4))
targets = features[:, 0] * features[:, 1] + features[:, 2]

with collective.CommunicatorContext(**address, dmlc_task_id=str(rank)):
    mine = slice(rank, None, world)
    rows = xgboost.DMatrix(features[mine], targets[mine])
    history = {}
    booster = xgboost.train(
        {"max_depth": 4, "tree_method": "hist", "nthread": 1},
        rows,
        num_boost_round=20,
        evals=[(rows, "train")],
        evals_result=history,
        verbose_eval=False,
    )
    loss, trees = history["train"]["rmse"][-1], len(booster.get_dump())
    print(f"process {collective.get_rank()} of {world}: loss {loss:.6f}, {trees} trees")
if tracker is not None:
    tracker.wait_for()
