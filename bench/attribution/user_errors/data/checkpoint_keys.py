"""Goes on from a checkpoint of the model as it was before its layers were renamed."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.decoder = nn.Linear(16, 8)

    def forward(self, rows):
        return self.decoder(torch.relu(self.encoder(rows)))


def resume(model, path):
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    return state["step"]


# What last week's run has left.
old = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
torch.save({"model": old.state_dict(), "step": 400}, "last.pt")

model = Model()
first = resume(model, "last.pt")
for step in range(first, first + 5):
    print(f"step {step} loss {model(torch.randn(4, 8)).square().mean().item():.4f}")
