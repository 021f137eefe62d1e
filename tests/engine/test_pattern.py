"""Patterns of users: what is one, and that none takes for ever."""

import pytest

from ganger.patterns import PatternError, pattern


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("uncorrectable ECC", "NVRM: Xid 48: uncorrectable ECC error", True),
        ("(?i)uncorrectable ecc", "Uncorrectable ECC", True),
        ("^Xid", "NVRM: Xid 48", False),
        (r"Xid \d+$", "NVRM: Xid 48", True),
        ("café", "le café", True),
    ],
)
def test_found_anywhere_in_a_line(text: str, line: str, found: bool) -> None:
    assert pattern(text).is_in(line) is found
    assert pattern(text).is_in(line.encode()) is found


@pytest.mark.parametrize("text", ["(a+)+$", "(a|a)*b", "(a*)*b", "(.*a){20}b", "(?:a?){30}a{30}b"])
def test_a_long_line_takes_no_pattern_for_ever(text: str) -> None:
    # Python's own engine would need longer than the test run is allowed for any of these.
    assert not pattern(text).is_in("a" * 200_000 + "!")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(", "missing"),
        ("(?=x)", "no look-around"),
        (r"(a)\1", "no back-reference"),
        ("a{2000}", "repetition"),
        ("((a{100}){100}){100}", "repetition|too large"),
        ("\ud800", "UTF-8"),
    ],
)
def test_what_is_none_says_why(text: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        pattern(text)
