"""Its settings come from a file that was edited by hand."""

import json


def settings(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    config = settings("bad_config.json")
    weight = 1.0
    for step in range(config["steps"]):
        weight -= config["lr"] * 2 * weight
        print(f"step {step} weight {weight:.4f}")


main()
