"""Reads a memory-mapped shard whose file has become shorter under it."""

import mmap
import resource

PAGE = mmap.PAGESIZE
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main():
    with open("shard.bin", "w+b") as file:
        file.write(bytes(8 * PAGE))
        file.flush()
        with mmap.mmap(file.fileno(), 8 * PAGE, access=mmap.ACCESS_READ) as shard:
            for step in range(8):
                if step == 4:
                    file.truncate(2 * PAGE)
                print(f"step {step} byte {shard[step * PAGE]}", flush=True)


main()
