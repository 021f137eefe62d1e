"""How many examples of a law are tried: in `make test` fewer of those that take much time."""

from hypothesis import settings

IN_GATE = settings.get_current_profile_name() == "ganger"
"""True in `make test`; false where GANGER_TEST_LONG is set."""


def examples(gate: int, otherwise: int = settings().max_examples) -> settings:
    """Return settings with this many examples in `make test`, so that the law uses less than 4 s of CPU time there."""
    return settings(max_examples=gate if IN_GATE else otherwise)
