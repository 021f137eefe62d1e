"""Saves a checkpoint where no space is left."""

import os


def save(path, content):
    with open(path, "wb") as file:
        file.write(content)


def main():
    # The one file to which every write fails so, for real.
    os.symlink("/dev/full", "checkpoint.bin")
    for step in range(5):
        print(f"step {step}", flush=True)
        if step == 3:
            save("checkpoint.bin", bytes(1 << 20))


main()
