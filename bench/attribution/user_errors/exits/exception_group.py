"""Loads its shards at the same time and fails with all that went wrong."""

import asyncio

SHARDS = {"a": [1, 2, 3], "b": None, "c": [4, 5]}


async def load(name):
    await asyncio.sleep(0.01)
    rows = SHARDS[name]
    return sum(rows)


async def epoch(number):
    async with asyncio.TaskGroup() as group:
        sums = [group.create_task(load(name)) for name in SHARDS]
    print(f"epoch {number} sum {sum(task.result() for task in sums)}")


def main():
    for number in range(3):
        asyncio.run(epoch(number))


main()
