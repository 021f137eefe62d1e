"""Asks for a device that this build of torch does not have."""

import argparse

import torch
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def main():
    options = parse()
    model = nn.Linear(8, 2)
    model = model.to(options.device)
    for step in range(options.steps):
        loss = model(torch.randn(4, 8, device=options.device)).square().mean()
        loss.backward()
        print(f"step {step} loss {loss.item():.4f}")


main()
