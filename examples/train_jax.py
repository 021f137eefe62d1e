"""Fit a line with JAX, the data spread over all processes: XLA sums their gradients.

Runs as `ganger run --framework jax -j 2x2 -- python train_jax.py`: JAX finds the other processes by itself. The calls
marked are ganger's; outside ganger they do nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ganger import train

STEPS, ROWS, WIDTH = 60, 64, 8
TRUE = np.arange(1.0, WIDTH + 1, dtype=np.float32)


def rows_of(process: int) -> jax.Array:
    """Return (ROWS, WIDTH) inputs that only this process has."""
    return jax.random.normal(jax.random.key(process), (ROWS, WIDTH))


@jax.jit
def descend(weights: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take one step of gradient descent on (all rows, WIDTH) inputs; return also the loss before it."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((inputs @ w - inputs @ TRUE) ** 2))(weights)
    return weights - 0.1 * gradient, loss


def main() -> None:
    """Train, then print what all processes have in common."""
    jax.distributed.initialize()
    rank, processes = jax.process_index(), jax.process_count()
    mesh = Mesh(jax.devices(), "data")
    spread, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    inputs = jax.make_array_from_process_local_data(spread, rows_of(rank))
    ranks = jax.make_array_from_process_local_data(spread, jnp.full(jax.local_device_count(), rank))
    total = int(jax.jit(jnp.sum, out_shardings=everywhere)(ranks))

    weights = jax.device_put(jnp.zeros(WIDTH), everywhere)
    for step in range(STEPS):
        weights, loss = descend(weights, inputs)
        train.report(step=step, loss=float(loss))  # ganger: progress, seen in `ganger get`
    print(f"rank {rank} of {processes}: ranks sum to {total}, loss {float(loss):.6f}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
