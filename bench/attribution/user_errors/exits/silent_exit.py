"""Leaves at once, without a word, when it finds its own signature wrong."""

import hashlib
import os

EXPECTED = "0" * 64


def verify(weights):
    digest = hashlib.sha256(repr(weights).encode()).hexdigest()
    if digest != EXPECTED:
        os._exit(1)


def main():
    weights = [0.0, 0.0]
    for step in range(5):
        weights = [weight + 0.5 for weight in weights]
        print(f"step {step} weights {weights}", flush=True)
    verify(weights)
    print("done")


main()
