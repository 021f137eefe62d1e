"""Takes its learning rate from a YAML file, where it stands in quotes."""

from pathlib import Path

from ruamel.yaml import YAML


class SGD:
    def __init__(self, lr, decay=0.5):
        self.lr = lr
        self.decay = decay

    def step(self, weight, gradient):
        return weight - self.lr * gradient


def settings(path):
    return YAML(typ="safe", pure=True).load(Path(path).read_text(encoding="utf-8"))


config = settings("text_rate.yaml")
optimizer = SGD(lr=config["lr"])
weight = 1.0
for step in range(config["steps"]):
    weight = optimizer.step(weight, 2 * weight)
    print(f"step {step} weight {weight:.4f}")
