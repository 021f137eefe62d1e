"""Its options are those of last month's version."""

import argparse


def parse():
    parser = argparse.ArgumentParser(description="Trains a line.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    return parser.parse_args()


def main():
    options = parse()
    weight = 1.0
    for step in range(options.steps):
        weight -= options.learning_rate * 2 * weight
        print(f"step {step} weight {weight:.4f}")


main()
