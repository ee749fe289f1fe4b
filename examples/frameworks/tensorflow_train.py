"""Linear regression in TensorFlow with MultiWorkerMirroredStrategy, which finds its workers through TF_CONFIG.

windlass run --nproc 2 tensorflow_train.py
"""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

ROWS, WIDTH, STEPS, BATCH = 256, 8, 20, 256
rng = np.random.default_rng(1)
features = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
targets = features @ np.arange(WIDTH, dtype=np.float32)

# Every worker takes its part of each batch.
rows = tf.data.Dataset.from_tensor_slices((features, targets)).batch(BATCH).repeat()
batches = iter(strategy.experimental_distribute_dataset(rows))

with strategy.scope():
    weights = tf.Variable(tf.zeros([WIDTH]), aggregation=tf.VariableAggregation.SUM)


@tf.function
def train_step(batch):
    def on_one_worker(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.linalg.matvec(x, weights) - y) ** 2) / BATCH
        weights.assign_sub(0.05 * strategy_sum(tape.gradient(loss, weights)))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_one_worker, args=(batch,)), axis=None)


def strategy_sum(gradient):
    """The sum over workers; each then assigns a share of it, and the assignments are added up."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradient) / strategy.num_replicas_in_sync


for _ in range(STEPS):
    loss = train_step(next(batches))

resolver = strategy.cluster_resolver
print(
    f"process {resolver.task_id or 0} of {strategy.num_replicas_in_sync}: loss {float(loss):.6f}, "
    f"weights {np.round(weights.numpy(), 3)}"
)
