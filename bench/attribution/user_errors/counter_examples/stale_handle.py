"""Reads shards from a file server that has changed under its mount."""

import errno
import os


class Mount:
    """Stands in for a directory of a file server."""

    def read(self, path, step):
        if step == 3:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return bytes(step)


def main():
    mount = Mount()
    for step in range(10):
        shard = mount.read(f"/mnt/fileserver/webtext/shard-{step:05d}.bin", step)
        print(f"step {step} bytes {len(shard)}", flush=True)


main()
