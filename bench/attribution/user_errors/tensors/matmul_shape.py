"""Two-layer classifier; the hidden width was changed in one place only."""

import torch
import torch.distributed as dist
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        hidden = torch.relu(self.embed(x))
        return self.head(hidden)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        logits = model(torch.randn(8, 16))
        loss = nn.functional.cross_entropy(logits, torch.randint(0, 4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


main()
