"""Regression on features that were saved as doubles."""

import torch
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 10), nn.Tanh())
        self.out = nn.Linear(10, 1)

    def forward(self, rows):
        return self.out(self.body(rows)).squeeze(-1)


features = torch.rand(32, 5, dtype=torch.float64)
targets = features.sum(dim=1)
model = Regressor()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(10):
    loss = (model(features) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
