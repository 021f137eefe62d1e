"""Every policy there is: the laws run for each of them, so that a new one is tested before its author writes a test."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Signature
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from ganger.core.queue_order.policy_interface import Policy
from ganger.model.units import MINUTE_MS
from ganger.policies import las
from ganger.registry import policies
from tests.examples import IN_GATE
from tests.laws.cluster_size import on_either_size

_LAS_THAT_STARVES = SimpleNamespace(**{**vars(las), "NAME": "las that starves", "STARVATION_AGE_MS": 10 * MINUTE_MS})
"""No module has this combination yet, but one may: running gangs are ordered, and nodes are reserved."""

POLICIES: dict[str, Policy] = cast(Any, policies()) | {"las that starves": cast(Policy, _LAS_THAT_STARVES)}

FEWER_EXAMPLES = settings(max_examples=max(15, 4 * settings().max_examples // len(POLICIES)))
"""Settings of laws on whole lives under one policy, which take the most time."""

Law = Callable[..., None]


def every_policy(*, each: int = 4, **drawn: st.SearchStrategy[Any]) -> Callable[[Law], Law]:
    """Return what `given(**drawn)` returns, for a law that takes a policy, too; `each` are its examples of a policy."""
    return _given_policies(POLICIES, each, drawn)


def guaranteeing(law: str, *, each: int = 4, **drawn: st.SearchStrategy[Any]) -> Callable[[Law], Law]:
    """Return the same for the policies that guarantee a law of liveness."""
    return _given_policies(
        [name for name, policy in POLICIES.items() if law in policy.LIVENESS_GUARANTEES], each, drawn
    )


def _given_policies(
    names: Iterable[str], each: int, drawn: Mapping[str, st.SearchStrategy[Any]]
) -> Callable[[Law], Law]:
    """Return a decorator that makes one test of all policies; for a longer search, a test of each.

    The one test runs the law for one policy after the other. Were the policy drawn as the rest is, sixty examples would
    meet eight to thirteen of fifteen: Hypothesis begins many of them as it began earlier ones.
    """

    def decorate(law: Law) -> Law:
        law = on_either_size(law)

        @wraps(law)
        def law_of_policy(policy: str, **values: object) -> None:
            law(policy=POLICIES[policy], **values)

        if not IN_GATE:
            return pytest.mark.parametrize("policy", [*names])(FEWER_EXAMPLES(given(**drawn)(law_of_policy)))

        @wraps(law)
        def law_of_all() -> None:
            for name in names:
                test = settings(max_examples=each)(given(**drawn)(law_of_policy))
                if settings().derandomize:  # the same examples in every run, but others for each policy
                    test = seed(f"{law.__name__} {name}")(test)
                try:
                    test(policy=name)
                except BaseException as error:
                    error.add_note(
                        f"policy: {name}. To reproduce it, write the decorator below `every_policy`, and run "
                        f"GANGER_TEST_LONG=1 pytest '...::{law.__name__}[{name}]'"
                    )
                    raise

        law_of_all.__signature__ = Signature()  # type: ignore[attr-defined]  # what pytest reads: it needs no fixture
        return law_of_all

    return decorate
