"""Fit a line with TensorFlow's parameter servers: a chief hands out steps, workers compute them, servers keep weights.

Runs as `ganger run -f parameter_server.yaml`: TF_CONFIG tells each process its role. Servers and workers run until the
chief has ended, and with it the job. The call marked is ganger's; outside ganger it does nothing.
"""

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from ganger import train

STEPS, ROWS, WIDTH = 60, 64, 8
TRUE = np.arange(1.0, WIDTH + 1, dtype=np.float32)


def serve(cluster: Any) -> None:
    """Be a worker or a parameter server for as long as the job lasts."""
    server = tf.distribute.Server(cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id)
    server.join()


def lead(cluster: Any) -> None:
    """Be the chief: make the weights on the servers, and give every worker a batch in each step."""
    partitions = tf.distribute.experimental.partitioners.FixedShardsPartitioner(cluster.cluster_spec().num_tasks("ps"))
    strategy = tf.distribute.ParameterServerStrategy(cluster, variable_partitioner=partitions)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(tf.zeros(WIDTH))

    @tf.function
    def descend(seed: tf.Tensor) -> tf.Tensor:
        """Take one step of gradient descent on the step's own rows; return the loss before it."""
        inputs = tf.random.stateless_normal((ROWS, WIDTH), seed=tf.stack([seed, 0]))
        with tf.GradientTape() as tape:
            current = tf.concat([tf.identity(shard) for shard in weights.variables], 0)
            tape.watch(current)
            error = tf.linalg.matvec(inputs, current) - tf.linalg.matvec(inputs, TRUE)
            loss = tf.reduce_mean(error**2)
        slopes = tf.split(0.05 * tape.gradient(loss, current), [shard.shape[0] for shard in weights.variables])
        for shard, slope in zip(weights.variables, slopes, strict=True):
            shard.assign_sub(slope)
        return loss

    workers = cluster.cluster_spec().num_tasks("worker")
    mean = 0.0
    for step in range(STEPS):
        losses = [
            coordinator.schedule(descend, args=(tf.constant(step * workers + worker),)) for worker in range(workers)
        ]
        coordinator.join()
        mean = sum(float(loss.fetch()) for loss in losses) / workers
        train.report(step=step, loss=mean)  # ganger: progress, seen in `ganger get`
    placed = {shard.device for shard in weights.variables}
    print(f"{workers} workers, weights on {len(placed)} servers, loss {mean:.6f}", flush=True)


def main() -> None:
    """Act according to the role."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type in ("worker", "ps"):
        serve(cluster)
    elif cluster.task_type == "chief":
        lead(cluster)
    else:
        sys.exit("this script needs the roles chief, worker and ps: ganger run -f parameter_server.yaml")


if __name__ == "__main__":
    main()
