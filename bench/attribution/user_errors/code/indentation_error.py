"""Perceptron on the logical or."""

ROWS = [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((1, 1), 1)]


def predict(weights, bias, row):
    return int(weights[0] * row[0] + weights[1] * row[1] + bias > 0)


def train(epochs):
    weights, bias = [0.0, 0.0], 0.0
    for epoch in range(epochs):
        for row, target in ROWS:
            error = target - predict(weights, bias, row)
            weights = [w + 0.1 * error * x for w, x in zip(weights, row)]
              bias += 0.1 * error
        print(f"epoch {epoch} weights {weights}")


train(5)
