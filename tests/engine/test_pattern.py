"""Patterns of users: which are valid, and that matching is always fast."""

import pytest

from ganger.patterns import PatternError, pattern


@pytest.mark.parametrize(
    ("text", "line", "is_match"),
    [
        ("uncorrectable ECC", "NVRM: Xid 48: uncorrectable ECC error", True),
        ("(?i)uncorrectable ecc", "Uncorrectable ECC", True),
        ("^Xid", "NVRM: Xid 48", False),
        (r"Xid \d+$", "NVRM: Xid 48", True),
        ("café", "le café", True),
        (r"caf\w", "le café", False),
        (r"caf\x{e9}", "le café", True),
        (r"[\x{1F600}-\x{1F64F}]", "\U0001f600", True),
        (r"a\011b", "a\tb", True),
        (r"\\x{2}", r"\xx", True),
    ],
)
def test_matches_anywhere_in_a_line(text: str, line: str, is_match: bool) -> None:
    assert pattern(text).matches(line) is is_match
    assert pattern(text).matches(line.encode()) is is_match


def test_lines_that_are_not_utf_8() -> None:
    assert pattern("^a.b$").matches(b"a\xffb")
    assert pattern("^a.b$").matches("a\udcffb")


@pytest.mark.parametrize("text", ["(a+)+$", "(a|a)*b", "(a*)*b", "(.*a){20}b", "(?:a?){30}a{30}b"])
def test_matching_a_long_line_is_fast(text: str) -> None:
    # Python's own engine would need longer than the test run is allowed for any of these.
    assert not pattern(text).matches("a" * 200_000 + "!")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", "missing"),
        ("(?=x)", "no look-around"),
        (r"(a)\1", "no back-reference"),
        ("a\\", "trailing"),
        ("a{2000}", "repetition"),
        ("((a{100}){100}){100}", "repetition|too large"),
        ("\ud800", "UTF-8"),
    ],
)
def test_an_invalid_pattern_gives_the_reason(text: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        pattern(text)
