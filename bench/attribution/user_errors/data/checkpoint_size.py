"""Goes on from a checkpoint of a smaller vocabulary."""

import torch
from torch import nn


def build(vocabulary):
    return nn.ModuleDict({"embed": nn.Embedding(vocabulary, 16), "head": nn.Linear(16, vocabulary)})


def save_first_run(path):
    torch.save(build(vocabulary=100).state_dict(), path)


def main():
    save_first_run("first-run.pt")
    model = build(vocabulary=120)
    model.load_state_dict(torch.load("first-run.pt", weights_only=True))
    for step in range(5):
        hidden = model["embed"](torch.randint(0, 120, (4,)))
        print(f"step {step} mean {model['head'](hidden).mean().item():.4f}")


main()
