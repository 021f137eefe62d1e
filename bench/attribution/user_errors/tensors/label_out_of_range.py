"""Digit classifier: the labels in the new data start at one."""

import torch
from torch import nn

CLASSES = 10


def batch(step):
    torch.manual_seed(step)
    images = torch.randn(16, 64)
    labels = torch.arange(16) % CLASSES + 1
    return images, labels


model = nn.Linear(64, CLASSES)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    images, labels = batch(step)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
