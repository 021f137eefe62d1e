"""Training of small models by data-parallel ranks: `resized_training.py SEEDS STEPS FILE`; not a bench.

Run by `elastic_loss`, under ganger. One process group trains a model for each seed, so that torch is imported once for
all; it goes on from the newest checkpoint, of any number of ranks. It saves and ends on a notice, and after the last
step writes the losses to FILE.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ganger import train

SAMPLES, BATCH, WIDTH = 3000, 48, 16
PAUSE_S = 0.02
"""Between two steps, so that a request for another size arrives some steps later, and not after the last one."""


class Model:
    """The model of one seed, its optimizer, its data and the order of that."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.network = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.02, momentum=0.9)
        self.inputs = torch.randn(SAMPLES, WIDTH)
        self.targets = (self.inputs[:, :4].sin().sum(1, keepdim=True) + 0.1 * torch.randn(SAMPLES, 1)).detach()
        self.order = train.shard(SAMPLES, BATCH, seed=seed)

    def step(self, samples: list[int], ranks: int) -> None:
        """Train on this rank's piece of a global batch; all ranks average their gradients."""
        self.optimizer.zero_grad()
        self.loss(torch.tensor(samples)).backward()
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, averaged in zip(
            gradients, (flat / ranks).split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(averaged.view_as(gradient))
        self.optimizer.step()
        self.order.advance()

    def loss(self, samples: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.network(self.inputs[samples]), self.targets[samples])

    def state(self) -> dict[str, object]:
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "order": self.order.state(),
        }

    def resume(self, state: dict[str, object]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.order.resume(state["order"])


def main(seeds: int, steps: int, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    me, newest = train.world(), train.latest()
    models = [Model(seed) for seed in range(seeds)]
    if newest is not None:
        for model, state in zip(models, torch.load(newest.directory / "models.pt"), strict=True):
            model.resume(state)
    orders = [iter(model.order) for model in models]
    for step in range(newest.step + 1 if newest else 1, steps + 1):
        for model, order in zip(models, orders, strict=True):
            model.step(next(order), me.world_size)
        train.report(step=step)
        if train.should_checkpoint():
            if me.rank == 0:
                with train.checkpoint(step) as directory:
                    torch.save([model.state() for model in models], directory / "models.pt")
            break
        time.sleep(PAUSE_S)
    else:
        if me.rank == 0:
            Path(file).write_text(json.dumps([model.loss(torch.arange(SAMPLES)).item() for model in models]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
