"""Diverges; a guard checks the loss after each step."""

import math
import os


def guard(step, loss):
    if not math.isfinite(loss):
        raise FloatingPointError(f"loss is {loss} at step {step}: the learning rate is too high")


def main():
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    weight, rate = 1.0, 1e40
    for step in range(100):
        gradient = 2 * weight
        weight -= rate * gradient
        loss = weight * weight
        guard(step, loss)
        print(f"rank {rank} step {step} loss {loss:.3g}", flush=True)


main()
