"""A Kubernetes API server for tests and benches: the real one's semantics, in Python, and faults on demand."""

from tools.fakeapi.api import FakeApi
from tools.fakeapi.faults import Call, Fault
from tools.fakeapi.proxy import FaultProxy

__all__ = ["Call", "FakeApi", "Fault", "FaultProxy"]
