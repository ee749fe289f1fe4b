"""Linear regression in JAX over all processes of a run. Each sees its part of the data.

windlass run --nproc 2 jax_train.py
"""

import jax

jax.distributed.initialize()  # who is who comes from the launcher

import jax.numpy as jnp  # noqa: E402 - JAX must know the others before it looks for devices
import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

from windlass import job  # noqa: E402

ROWS, WIDTH, STEPS = 256, 8, 20
rng = np.random.default_rng(1)
features = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
targets = features @ np.arange(WIDTH, dtype=np.float32)
mine = slice(jax.process_index(), None, jax.process_count())
x, y = jnp.asarray(features[mine]), jnp.asarray(targets[mine])


@jax.jit
def loss_and_gradient(weights):
    return jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)


weights = jnp.zeros(WIDTH)
for step in range(STEPS):
    local = loss_and_gradient(weights)
    # The mean over processes of everyone's loss and gradient.
    loss, gradient = jax.tree.map(lambda part: part.mean(0), multihost_utils.process_allgather(local))
    weights = weights - 0.05 * gradient
    job.log(step + 1, total=STEPS, loss=loss)

print(f"process {jax.process_index()} of {jax.process_count()}: loss {float(loss):.6f}, weights {np.round(weights, 3)}")
