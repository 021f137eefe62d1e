"""Learning rates as functions of the step."""

import math


def constant(step, steps, peak):
    return peak


def cosine(step, steps, peak):
    return peak * (1 + math.cos(math.pi * step / steps)) / 2
