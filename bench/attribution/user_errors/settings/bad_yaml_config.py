"""Its settings come from a YAML file with a bracket left open."""

from pathlib import Path

from ruamel.yaml import YAML


def settings(path):
    text = Path(path).read_text(encoding="utf-8")
    return YAML(typ="safe", pure=True).load(text)


config = settings("bad_config.yaml")
weight = 1.0
for step in range(config["train"]["steps"]):
    weight -= config["train"]["lr"] * 2 * weight
    print(f"step {step} weight {weight:.4f}")
