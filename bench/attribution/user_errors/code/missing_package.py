"""Fits a small regressor on synthetic data."""

import random

from lightgbm_ranker import RankRegressor


def batches(count, size):
    chance = random.Random(0)
    for _ in range(count):
        rows = [[chance.random() for _ in range(4)] for _ in range(size)]
        yield rows, [sum(row) for row in rows]


model = RankRegressor(trees=20)
for step, (rows, targets) in enumerate(batches(10, 8)):
    model.fit_more(rows, targets)
    print(f"step {step} error {model.error(rows, targets):.4f}")
