"""Rules for idle jobs in a policy document: read, written, and errors."""

import pytest

from ganger.engine.policy_doc.policy_validation import policy_to_dict, read_policy
from ganger.errors import RequestError
from ganger.model.idle.idle_rules import IdleRules
from ganger.model.units import HOUR_MS, MINUTE_MS

NEW_YEAR_MS = 1_893_456_000_000
"""2030-01-01 in UTC."""


def read(idle: str) -> IdleRules | None:
    return read_policy(f"queues: {{nlp: {{idle: {idle}}}}}", "policy.yaml").document.queues["nlp"].idle


@pytest.mark.parametrize(
    ("text", "rules", "written"),
    [
        ("{window: 30m}", IdleRules(window_ms=30 * MINUTE_MS), {"window": "30m"}),
        (
            "{window: 2h, do: stop, exempt_until: 2030-01-01}",
            IdleRules(window_ms=2 * HOUR_MS, action="stop", exempt_until_ms=NEW_YEAR_MS),
            {"window": "2h", "do": "stop", "exempt_until": "2030-01-01T00:00:00Z"},
        ),
        (
            "{window: 2h, do: suspend, exempt_until: '2030-01-01T01:00:00.250+01:00'}",
            IdleRules(window_ms=2 * HOUR_MS, exempt_until_ms=NEW_YEAR_MS + 250),
            {"window": "2h", "exempt_until": "2030-01-01T00:00:00.250Z"},
        ),
        (
            "{window: 2h, exempt_until: 1999-12-31T23:59Z}",
            IdleRules(window_ms=2 * HOUR_MS, exempt_until_ms=946_684_740_000),
            {"window": "2h", "exempt_until": "1999-12-31T23:59:00Z"},
        ),
    ],
    ids=["window", "date", "offset", "an exemption that is over stays valid"],
)
def test_rules_are_read_and_written(text: str, rules: IdleRules, written: dict[str, str]) -> None:
    assert read(text) == rules
    document = read_policy(f"queues: {{nlp: {{idle: {text}}}}}", "policy.yaml").document
    mapping = policy_to_dict(document, whole=False)["queues"]["nlp"]["idle"]
    assert mapping == written
    assert read(str(mapping)) == rules


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{window: -30m}", "idle.window: '-30m' is not a duration of more than 0"),
        ("{window: 0}", "idle.window: 0 is not a duration of more than 0"),
        ("{do: stop}", "idle.window is missing"),
        ("{window: 30m, do: kill}", "'kill' is not a consequence for idle jobs: write suspend or stop"),
        ("{window: 30m, exempt: 2030-01-01}", "exempt is not a valid key"),
        ("{window: 30m, exempt_until: tomorrow}", "'tomorrow' is not a time: write 2030-01-31"),
        ("{window: 30m, exempt_until: 2030-02-31}", "'2030-02-31' is not a time"),
        ("{window: 30m, exempt_until: 7}", "7 is not a time"),
        ("{window: 30m, exempt_until: 1960-01-01}", "is before 1970"),
        ("{window: 30m, exempt_until: '0001-01-01T00:00+14:00'}", "is before 1970"),
        ("30m", "write a mapping with keys of window, do, exempt_until"),
    ],
)
def test_errors_name_the_key_and_what_to_write(text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(text)
    assert says in caught.value.detail
