"""Checks its own settings, says what is wrong and leaves with a code of its own."""

import sys

SETTINGS = {"batch": 48, "accumulate": 5, "steps": 10}


def check(settings):
    if settings["batch"] % settings["accumulate"]:
        print(
            f"train: batch {settings['batch']} cannot be split into {settings['accumulate']} equal parts",
            file=sys.stderr,
        )
        sys.exit(3)


def main():
    check(SETTINGS)
    for step in range(SETTINGS["steps"]):
        print(f"step {step}")


main()
