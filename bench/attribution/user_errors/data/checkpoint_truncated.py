"""Goes on from a checkpoint that was copied while it was being written."""

import os

import torch
from torch import nn


def copy_half(source, target):
    with open(source, "rb") as file:
        whole = file.read()
    with open(target, "wb") as file:
        file.write(whole[: len(whole) // 2])


def main():
    model = nn.Linear(256, 256)
    torch.save(model.state_dict(), "running.pt")
    copy_half("running.pt", "copied.pt")
    os.remove("running.pt")
    state = torch.load("copied.pt", weights_only=True)
    model.load_state_dict(state)
    for step in range(5):
        print(f"step {step} loss {model(torch.randn(4, 256)).square().mean().item():.4f}")


main()
