"""Prepares its data by a program that fails."""

import subprocess
import sys

PREPARE = "import sys; sys.exit('prepare: no shard matches train-*.tar')"


def prepare():
    subprocess.run([sys.executable, "-c", PREPARE], check=True)


def main():
    prepare()
    for step in range(10):
        print(f"step {step}")


main()
