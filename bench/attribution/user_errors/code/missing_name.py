"""Learns a line by gradient descent, with a schedule from a module beside it."""

import random

from schedules import cosine_with_warmup

STEPS = 20


def main():
    chance = random.Random(0)
    slope = 0.0
    for step in range(STEPS):
        x = chance.uniform(-1, 1)
        error = slope * x - 3 * x
        slope -= cosine_with_warmup(step, STEPS, peak=0.5) * error * x
        print(f"step {step} slope {slope:.3f}")


main()
