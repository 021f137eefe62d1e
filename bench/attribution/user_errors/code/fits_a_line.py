"""Nothing is wrong with this one: two labels start it wrongly."""

import random


def main():
    chance = random.Random(0)
    slope = 0.0
    for step in range(20):
        x = chance.uniform(-1, 1)
        slope -= 0.5 * (slope * x - 3 * x) * x
        print(f"step {step} slope {slope:.3f}")


main()
