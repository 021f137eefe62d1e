"""A worker of the DataLoader meets a row that cannot be parsed."""

import torch
from torch.utils.data import DataLoader, Dataset

ROWS = ["1.0,2.0", "3.0,4.0", "5.0,6.0", "7.0;8.0", "9.0,10.0", "11.0,12.0"]


class Pairs(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        left, right = ROWS[index].split(",")
        return torch.tensor([float(left), float(right)])


def main():
    loader = DataLoader(Pairs(), batch_size=2, num_workers=1)
    for step, batch in enumerate(loader):
        print(f"step {step} sum {batch.sum().item()}", flush=True)


if __name__ == "__main__":
    main()
