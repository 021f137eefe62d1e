"""Nouns with their number."""


def count(number: int, noun: str) -> str:
    """Return `1 node`, `2 processes`, `3 retries`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"
