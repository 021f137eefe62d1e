"""Quantities against decimal arithmetic, and invalid ones."""

from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.kubeapi.quantity import MAX_AMOUNT, available_amount, parse_quantity, requested_amount

EXACT = Context(prec=200)
DECIMAL = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15"}
BINARY = {f"{letter}i": str(1024**power) for power, letter in enumerate("KMGTPE", 1)}
POWERS = {f"{letter}{power}": f"1e{power}" for letter in "eE" for power in ("3", "+2", "-7", "00", "12")}
SUFFIXES = {**DECIMAL, "E": "1e18", **BINARY, **POWERS}
WHOLE = st.from_regex(r"[0-9]{1,20}", fullmatch=True)
NUMBERS = st.one_of(
    WHOLE,
    st.from_regex(r"[0-9]{1,12}\.[0-9]{0,12}", fullmatch=True),
    st.from_regex(r"\.[0-9]{1,12}", fullmatch=True),
)


def decimal(number: str, suffix: str) -> Decimal:
    return EXACT.multiply(Decimal(number), Decimal(SUFFIXES[suffix]))


@given(number=NUMBERS, suffix=st.sampled_from(sorted(SUFFIXES)))
def test_is_exactly_what_decimal_arithmetic_gives(number: str, suffix: str) -> None:
    assert parse_quantity(number + suffix) == Fraction(decimal(number, suffix))


@given(number=NUMBERS, suffix=st.sampled_from(sorted(SUFFIXES)), per_unit=st.sampled_from([1, 1000]))
def test_requests_are_rounded_up_and_capacity_down(number: str, suffix: str, per_unit: int) -> None:
    exact = EXACT.multiply(decimal(number, suffix), Decimal(per_unit))
    up, down = exact.to_integral_value("ROUND_CEILING"), exact.to_integral_value("ROUND_FLOOR")
    assert requested_amount(number + suffix, per_unit, "pod a/b: cpu") == min(MAX_AMOUNT, int(up))
    assert available_amount(number + suffix, per_unit, "node n: cpu") == min(MAX_AMOUNT, int(down))


@pytest.mark.parametrize(
    ("text", "milli"),
    [("7910m", 7910), ("8", 8000), ("0.1", 100), ("1e3", 1_000_000), ("1E", MAX_AMOUNT), ("1E1", 10_000), ("100u", 1)],
)
def test_as_the_api_server_reads_it(text: str, milli: int) -> None:
    assert requested_amount(text, 1000, "pod a/b: cpu") == milli


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "-1",
        "+1",
        "1.2.3",
        "1KB",
        "Gi",
        ".",
        "1e",
        "e3",
        "1mi",
        "٣",
        "1e9999",
        "0x10",
        "1_000",
        "9" * 99,
    ],
)
def test_what_is_no_quantity_is_named_once_and_counts_as_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)
    whose = f"node gpu-7: memory ({text})"
    assert [available_amount(text, 1, whose), available_amount(text, 1, whose)] == [0, 0]
    assert caplog.messages == [f"{whose}: {text!r} is not a quantity: write 2, 500m, 64Gi, 1e3; it counts as 0"]


@given(text=st.text(alphabet="0123456789.+-eEmkKMGiTPnu ", max_size=12))
def test_never_anything_else_than_a_number_or_an_error(text: str) -> None:
    assert 0 <= requested_amount(text, 1000, "pod a/b: cpu") <= MAX_AMOUNT
    assert requested_amount(text, 1, "pod a/b: cpu") <= requested_amount(text, 1000, "pod a/b: cpu")
