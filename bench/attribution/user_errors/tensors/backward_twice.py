"""A recurrent state that is never detached: the second step goes back through the first."""

import torch
from torch import nn

cell = nn.GRUCell(4, 8)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)


def train_step(rows, state):
    state = cell(rows, state)
    loss = state.square().mean()
    optimizer.zero_grad()
    loss.backward()
    return loss.item(), state


def main():
    state = torch.zeros(2, 8)
    for step in range(5):
        loss, state = train_step(torch.randn(2, 4), state)
        print(f"step {step} loss {loss:.4f}", flush=True)


main()
