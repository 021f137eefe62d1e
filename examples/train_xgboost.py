"""Boost trees with XGBoost, each process with rows of its own: histograms are all-reduced, so all grow the same trees.

Runs as `ganger run --framework xgboost -j 2x2 -- python train_xgboost.py`: ganger runs the tracker. The call marked is
ganger's; outside ganger it does nothing.
"""

import os

import numpy as np
import xgboost
from xgboost import collective

from ganger import train

ROUNDS, ROWS, WIDTH = 30, 400, 8


def tracker() -> dict[str, str | int]:
    """Return the tracker's address for `collective.init`, which does not read the environment itself."""
    if "DMLC_TRACKER_URI" not in os.environ:
        return {}
    uri, port, task = (os.environ[f"DMLC_{name}"] for name in ("TRACKER_URI", "TRACKER_PORT", "TASK_ID"))
    return {"dmlc_tracker_uri": uri, "dmlc_tracker_port": int(port), "dmlc_task_id": task}


def main() -> None:
    """Train, then print what all processes have in common."""
    with collective.CommunicatorContext(**tracker()):
        rank, processes = collective.get_rank(), collective.get_world_size()
        total = int(collective.allreduce(np.array([rank]), collective.Op.SUM)[0])
        inputs = np.random.default_rng(rank).normal(size=(ROWS, WIDTH))
        table = xgboost.DMatrix(inputs, label=inputs @ np.arange(1.0, WIDTH + 1))
        losses: dict[str, dict[str, list[float]]] = {}
        booster = None
        for step in range(ROUNDS):
            booster = xgboost.train(
                {"max_depth": 4, "eta": 0.3, "nthread": 1},
                table,
                num_boost_round=1,
                xgb_model=booster,
                evals=[(table, "train")],
                evals_result=losses,
                verbose_eval=False,
            )
            loss = losses["train"]["rmse"][-1]
            train.report(step=step, loss=loss)  # ganger: progress, seen in `ganger get`
        print(f"rank {rank} of {processes}: ranks sum to {total}, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
