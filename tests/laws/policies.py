"""Every policy there is: the laws run for each of them, so that a new one is tested before its author writes a test."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings

from ganger.core.queue_order.policy_interface import Policy
from ganger.model.units import MINUTE_MS
from ganger.policies import las
from ganger.registry import policies

_IMPATIENT = SimpleNamespace(**{**vars(las), "NAME": "las that starves", "STARVES_AFTER_MS": 10 * MINUTE_MS})
"""No file has it yet, but one may: running gangs are ordered and nodes are held, both."""

POLICIES: dict[str, Policy] = cast(Any, policies()) | {"las that starves": cast(Policy, _IMPATIENT)}

SHARED = settings(max_examples=max(15, 4 * settings().max_examples // len(POLICIES)))
"""For laws on whole lives, which take the time that laws take. Most of what a life goes through is the same under every
policy: they share as many examples as four of them would have, so that one more costs nobody a longer wait. In a search
(`GANGER_TEST_LONG`) each has thousands anyway."""

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=[*POLICIES])


def promising(law: str) -> pytest.MarkDecorator:
    """Parametrizes over the policies that promise a law of liveness."""
    names = [name for name, policy in POLICIES.items() if law in policy.PROMISES]
    return pytest.mark.parametrize("policy", [POLICIES[name] for name in names], ids=names)
