"""ganger's API group, its custom resources, and its identity as a client of the API server."""

from typing import Final

from ganger.kubeapi.objects import CustomObject
from ganger.kubeapi.request import Program
from ganger.kubeapi.resources import Resource

GROUP: Final = "ganger.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

GANG_JOBS: Final = Resource(GROUP, VERSION, "gangjobs", CustomObject)
QUEUES: Final = Resource(GROUP, VERSION, "queues", CustomObject)
POLICIES: Final = Resource(GROUP, VERSION, "schedulingpolicies", CustomObject)
NETWORK_PROFILES: Final = Resource(GROUP, VERSION, "networkprofiles", CustomObject)

SCHEDULER: Final = "ganger"
"""`schedulerName` of the pods that ganger places."""
PROGRAM: Final = Program("ganger", f"{GROUP}/created-by", "ganger install --dry-run | kubectl apply -f -")
"""ganger as a client of the API server."""
