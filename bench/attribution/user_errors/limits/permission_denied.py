"""Saves its results into a directory that belongs to another user."""

import os
import tempfile
from pathlib import Path

UNPRIVILEGED_UID = 65534


def save(directory, name, text):
    Path(directory, name).write_text(text)


def main():
    results = tempfile.mkdtemp(prefix="results-of-the-team-")
    os.chmod(results, 0o555)
    root = os.geteuid() == 0
    if root:  # who may write anywhere
        os.seteuid(UNPRIVILEGED_UID)
    try:
        for step in range(5):
            save(results, f"step-{step}.txt", f"loss {1 / (step + 1)}\n")
    finally:
        if root:
            os.seteuid(0)
        os.rmdir(results)


main()
