"""ganger's own API group: its custom resources, and the names that the API server knows ganger by."""

from typing import Final

from ganger.kubeapi.objects import Custom
from ganger.kubeapi.request import Program
from ganger.kubeapi.resources import Resource

GROUP: Final = "ganger.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

GANG_JOBS: Final = Resource(GROUP, VERSION, "gangjobs", Custom)
QUEUES: Final = Resource(GROUP, VERSION, "queues", Custom)
POLICIES: Final = Resource(GROUP, VERSION, "schedulingpolicies", Custom)

SCHEDULER: Final = "ganger"
"""The `schedulerName` of the pods that ganger places."""
PROGRAM: Final = Program("ganger", f"{GROUP}/created-by", "ganger install --dry-run | kubectl apply -f -")
"""ganger as a client of the API server."""
