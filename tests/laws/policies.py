"""Every policy there is: the laws run for each of them, so that a new one is tested before its author writes a test."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings

from ganger.core.queue_order.policy_interface import Policy
from ganger.model.units import MINUTE_MS
from ganger.policies import las
from ganger.registry import policies

_LAS_THAT_STARVES = SimpleNamespace(**{**vars(las), "NAME": "las that starves", "STARVATION_AGE_MS": 10 * MINUTE_MS})
"""No module has this combination yet, but one may: running gangs are ordered, and nodes are reserved."""

POLICIES: dict[str, Policy] = cast(Any, policies()) | {"las that starves": cast(Policy, _LAS_THAT_STARVES)}

FEWER_EXAMPLES = settings(max_examples=max(15, 4 * settings().max_examples // len(POLICIES)))
"""Settings of laws on whole lives, which take the most time."""

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=[*POLICIES])


def guaranteeing(law: str) -> pytest.MarkDecorator:
    """Return a mark that parametrizes over the policies that guarantee a law of liveness."""
    names = [name for name, policy in POLICIES.items() if law in policy.LIVENESS_GUARANTEES]
    return pytest.mark.parametrize("policy", [POLICIES[name] for name in names], ids=names)
