"""Scales activations in place after something else has remembered them."""

import torch
from torch import nn

layer = nn.Linear(6, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)


def forward(rows):
    hidden = torch.sigmoid(layer(rows))
    hidden += 0.5
    return hidden.sum()


def main():
    for step in range(5):
        loss = forward(torch.randn(3, 6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
