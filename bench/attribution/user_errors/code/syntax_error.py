"""Counts tokens, then trains a unigram model."""

import collections
import math

TEXT = "the cat sat on the mat and the dog sat on the cat"


def perplexity(counts, tokens):
    total = sum(counts.values())
    loss = -sum(math.log(counts[token] / total) for token in tokens)
    return math.exp(loss / len(tokens))


counts = collections.Counter()
for epoch in range(3)
    counts.update(TEXT.split())
    print(f"epoch {epoch} perplexity {perplexity(counts, TEXT.split()):.3f}")
