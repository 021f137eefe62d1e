"""A model made on the meta device to save memory, and a table that was never moved."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


with torch.device("meta"):
    model = Tagger()
model.embed = nn.Embedding(100, 16)
for step in range(5):
    tokens = torch.randint(0, 100, (4, 7))
    scores = model(tokens)
    print(f"step {step} score {scores.mean().item():.4f}")
