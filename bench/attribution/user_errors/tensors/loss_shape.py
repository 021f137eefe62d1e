"""Binary classifier whose targets come without the last dimension."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()


def batch(size=16):
    rows = torch.randn(size, 6)
    return rows, (rows.sum(dim=1) > 0).float()


for step in range(5):
    rows, targets = batch()
    logits = model(rows)
    loss = criterion(logits, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
