"""Train a small transformer on synthetic text: an ordinary data-parallel PyTorch script that ganger can resume.

Runs as `ganger run --framework torch --nodes 2 --nproc-per-node 2 -- python train.py`, under torchrun, or alone. The
six marked calls are ganger's; outside ganger they do nothing. The batch of a step depends on the step and the rank
alone, so a resumed run computes what an uninterrupted one computes.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ganger import train

VOCABULARY, CONTEXT, WIDTH, BATCH = 64, 32, 64, 16


class TinyTransformer(nn.Module):
    """Two causal layers over learned token and position embeddings; 120,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (batch, CONTEXT, VOCABULARY) logits of the token after each of (batch, CONTEXT) token ids."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.layers(self.token(tokens) + self.position, mask=mask, is_causal=True))


def batch(step: int, rank: int) -> Tensor:
    """Return (BATCH, CONTEXT + 1) token ids: each row counts up by its own stride, one token in ten replaced."""
    seeded = torch.Generator().manual_seed(1_000_003 * step + rank)
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=seeded)
    stride = torch.randint(1, 4, (BATCH, 1), generator=seeded)
    tokens = (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY
    noise = torch.randint(VOCABULARY, tokens.shape, generator=seeded)
    return torch.where(torch.rand(tokens.shape, generator=seeded) < 0.1, noise, tokens)


def all_reduce(model: nn.Module, loss: Tensor) -> float:
    """Average gradients and loss over all ranks in one message."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach().reshape(1)])
    if dist.is_initialized():
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()
    return float(flat[-1])


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint on one rank: with data parallelism all ranks hold the same."""
    with train.checkpoint(step) as directory:  # ganger: visible only when it is complete
        torch.save(
            {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, directory / "state.pt"
        )


def hold(path: Path) -> None:
    """Wait until the file exists: a demonstration then controls how far the job gets."""
    with train.phase("hold"):  # ganger: not a hang
        while not path.exists():
            time.sleep(0.05)


def main() -> None:
    """Train for --steps steps, from the newest checkpoint if there is one."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=240)
    options.add_argument("--checkpoint-steps", type=int, default=20)
    options.add_argument("--pause", type=float, default=0.0, help="seconds to add to each step")
    options.add_argument("--hold", nargs=2, metavar=("STEP", "FILE"), help="wait before STEP until FILE exists")
    args = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
    model = TinyTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    newest = train.latest()  # ganger: the newest checkpoint that is whole
    if newest is not None:
        state = torch.load(newest.directory / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
        if rank == 0:
            print(f"resumed from step {state['step']}", flush=True)
    for step in range(first, args.steps):
        if args.hold and step == int(args.hold[0]):
            hold(Path(args.hold[1]))
        tokens = batch(step, rank)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        mean_loss = all_reduce(model, loss)
        optimizer.step()
        train.report(step=step, loss=mean_loss, total_steps=args.steps)  # ganger: progress, seen in `ganger get`
        is_periodic = step % args.checkpoint_steps == args.checkpoint_steps - 1
        is_asked = train.should_checkpoint()  # ganger: asked to save? The same on every rank
        if rank == 0:
            if step % 20 == 0 or step == args.steps - 1:
                print(f"step {step} loss {mean_loss:.4f}", flush=True)
            if is_asked or is_periodic:
                save(step, model, optimizer)
        if is_asked and train.notice():  # ganger: that was the last save of this attempt
            break
        time.sleep(args.pause)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
