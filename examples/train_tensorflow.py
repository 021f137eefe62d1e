"""Fit a line with TensorFlow's MultiWorkerMirroredStrategy: every process has a copy, gradients are all-reduced.

Runs as `ganger run --framework tensorflow -j 2x2 -- python train_tensorflow.py`: the strategy reads TF_CONFIG. The call
marked is ganger's; outside ganger it does nothing.
"""

import numpy as np
import tensorflow as tf

from ganger import train

STEPS, ROWS, WIDTH = 60, 64, 8
TRUE = np.arange(1.0, WIDTH + 1, dtype=np.float32)


def main() -> None:
    """Train, then print what all processes have in common."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id or 0
    inputs = tf.random.stateless_normal((ROWS, WIDTH), seed=(rank, 0))
    with strategy.scope():
        weights = tf.Variable(tf.zeros(WIDTH))

    def descend() -> tuple[tf.Tensor, tf.Tensor]:
        """Take one step of gradient descent on this process's rows; return its rank and the loss before the step."""
        replicas = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            error = tf.linalg.matvec(inputs, weights) - tf.linalg.matvec(inputs, TRUE)
            loss = tf.reduce_mean(error**2)
        gradient = replicas.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, weights))
        weights.assign_sub(0.1 * gradient)
        return tf.constant(float(rank)), loss

    @tf.function
    def step_everywhere() -> tuple[tf.Tensor, tf.Tensor]:
        """Run a step in every process; return the sum of their ranks and the mean of their losses."""
        ranks, losses = strategy.run(descend)
        return (
            strategy.reduce(tf.distribute.ReduceOp.SUM, ranks, axis=None),
            strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None),
        )

    for step in range(STEPS):
        total, loss = step_everywhere()
        train.report(step=step, loss=float(loss))  # ganger: progress, seen in `ganger get`
    processes = strategy.num_replicas_in_sync
    print(f"rank {rank} of {processes}: ranks sum to {int(total)}, loss {float(loss):.6f}", flush=True)


if __name__ == "__main__":
    main()
