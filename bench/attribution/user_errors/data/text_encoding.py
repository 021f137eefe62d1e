"""Reads a corpus that is not in UTF-8."""

import collections


def sentences(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield line.split()


def main():
    counts = collections.Counter()
    for step, words in enumerate(sentences("latin_corpus.txt")):
        counts.update(words)
        print(f"step {step} words {len(counts)}", flush=True)


main()
