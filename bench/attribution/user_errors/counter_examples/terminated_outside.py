"""Works, until another process ends it with SIGTERM."""

import time


def main():
    weight = 1.0
    for step in range(1200):
        weight -= 0.1 * weight
        print(f"step {step} weight {weight:.4f}", flush=True)
        time.sleep(0.05)


main()
