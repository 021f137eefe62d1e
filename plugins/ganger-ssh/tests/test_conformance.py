"""The suite that every backend passes, on two machines reached by ssh."""

from tests.conformance.suite import JobSuite


class TestSsh(JobSuite):
    """The suite."""
