"""Out of memory on the GPU, as torch reports it (no GPU is needed to run this)."""

import torch

CAPACITY_MIB = 80 * 1024
BATCH_MIB = 30 * 1024


class Device:
    """Stands in for the allocator of a GPU."""

    def __init__(self):
        self.used_mib = 4 * 1024

    def allocate(self, mib):
        if self.used_mib + mib > CAPACITY_MIB:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {mib / 1024:.2f} GiB. GPU 0 has a total capacity of "
                f"{CAPACITY_MIB / 1024:.2f} GiB of which {(CAPACITY_MIB - self.used_mib) / 1024:.2f} GiB is free. "
                f"Of the allocated memory {self.used_mib / 1024:.2f} GiB is allocated by PyTorch."
            )
        self.used_mib += mib


device = Device()
for step in range(5):
    device.allocate(BATCH_MIB)
    print(f"step {step} used {device.used_mib} MiB", flush=True)
