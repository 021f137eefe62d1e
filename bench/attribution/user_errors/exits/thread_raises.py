"""A prefetching thread dies; the main loop waits for the batch that never comes."""

import queue
import threading

FILES = [["1", "2", "3"], ["4", "5", "6"], ["7", "eight", "9"], ["10", "11", "12"]]


def prefetch(ready):
    for lines in FILES:
        ready.put([int(line) for line in lines])


def main():
    ready = queue.Queue(maxsize=2)
    threading.Thread(target=prefetch, args=(ready,), daemon=True).start()
    for step in range(len(FILES)):
        batch = ready.get(timeout=3)
        print(f"step {step} sum {sum(batch)}", flush=True)


main()
