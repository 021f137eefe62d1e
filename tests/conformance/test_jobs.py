"""The same jobs on the local backend and on a real cluster behave the same; and what only a controller does."""

import pytest

from tests.conformance.suite import JobSuite
from tests.conformance.worlds import InPods, observe

pytestmark = pytest.mark.long


class TestPods(JobSuite):
    """The suite on a real cluster."""


def test_a_secret_is_in_no_object(in_pods: InPods) -> None:
    value = "correct horse battery staple"
    in_pods.set_secret("PASSPHRASE", value)
    observe(in_pods, in_pods.submit("hidden", {"nodes": 1, "secrets": ["PASSPHRASE"], "run": "true"}))
    assert value not in in_pods.cluster.kubectl("get", "gangjobs,pods,configmaps", "-o", "json")


def test_a_code_directory_is_refused_by_the_controller(in_pods: InPods) -> None:
    in_pods.submit("directory", {"code": "./src", "run": "true"})
    status = in_pods.cluster.wait("directory", "Rejected")
    assert "./src is a directory of the user's machine" in status["message"]


def test_a_missing_secret_is_reported(in_pods: InPods) -> None:
    job = in_pods.submit("unknown", {"secrets": ["NOBODY_HAS_SET"], "run": "true", "retry": {"max": 0}})
    (attempt,) = observe(in_pods, job).attempts
    assert "couldn't find key NOBODY_HAS_SET in Secret" in attempt["sentence"]
