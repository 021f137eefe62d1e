"""Learning rate with a linear warm-up of no steps."""

STEPS = 10
WARMUP_STEPS = 0


def learning_rate(step, peak=0.1):
    if step <= WARMUP_STEPS:
        return peak * step / WARMUP_STEPS
    return peak * (STEPS - step) / (STEPS - WARMUP_STEPS)


weight = 1.0
for step in range(STEPS):
    weight -= learning_rate(step) * 2 * weight
    print(f"step {step} weight {weight:.4f}")
