"""Reads a vocabulary, then trains a bigram table."""

import collections


def load_vocabulary(path):
    with open(path, encoding="utf-8") as file:
        return {line.strip(): index for index, line in enumerate(file)}


def train(vocabulary, steps):
    table = collections.Counter()
    for step in range(steps):
        table[step % len(vocabulary)] += 1
        print(f"step {step} entries {len(table)}")


vocabulary = load_vocabulary("data/vocab-32k.txt")
train(vocabulary, 10)
