"""Sentences as token ids, batched by the default collate."""

import torch
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, lines):
        self.lines = lines

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        return torch.tensor([ord(letter) for letter in self.lines[index]])


def main():
    lines = ["abcd", "efgh", "ijkl", "mnop", "qrstuv", "wxyz"]
    embedding = torch.nn.Embedding(128, 8)
    for step, tokens in enumerate(DataLoader(Sentences(lines), batch_size=2)):
        mean = embedding(tokens).mean()
        print(f"step {step} mean {mean.item():.4f}", flush=True)


main()
