"""Tokens for queries to the controller: issued by the API server, with the caller's identity in their audiences.

`ganger install` prints the service account, and the policy that limits the audiences to the caller's own
(controller-queries.yaml).
"""

from typing import Final

from ganger.gang_jobs.custom_resources import GROUP

CALLER_ACCOUNT: Final = "ganger-caller"
"""Service account of the tokens, and role of users who may query the controller."""
AGENT_ACCOUNT: Final = "ganger-agent"
"""Service account of the agents of nodes, whose tokens name their nodes."""
CONTROLLER_AUDIENCE: Final = f"{GROUP}/controller"
ALL_JOBS_AUDIENCE: Final = f"{GROUP}/all-jobs"
"""Audience of callers who may list the jobs of all namespaces."""
LISTS_PREFIX: Final = f"{GROUP}/lists/"
"""Audience prefix; a namespace follows whose jobs the caller may list: they are told the names of these."""
ADMINISTERS_PREFIX: Final = f"{GROUP}/administers/"
"""Audience prefix; a namespace follows whose jobs the caller may administer."""
SUBMITS_PREFIX: Final = f"{GROUP}/submits/"
"""Audience prefix; a namespace follows in which the caller may create jobs: they may send code for it."""
ALL_NAMESPACES_ADMINISTERED: Final = f"{GROUP}/administers-all"
"""Audience of callers who may administer the jobs of all namespaces: they may have them moved."""
USER_PREFIX: Final = f"{GROUP}/user/"
"""Audience prefix; the user's name follows."""
ADDRESS: Final = "ganger-controller"
"""ConfigMap with the address and the certificate of the controller, for clients where no service leads to it."""
ADDRESS_URL, ADDRESS_CERTIFICATE = "url", "ca.crt"
CALLER_HEADER: Final = "ganger-authorization"
"""Header of the token: the API server consumes the usual one and does not forward it."""
DRY_RUN_PARAMETER: Final = "gangerDryRun"
"""Replaces the parameter `dryRun`, which the API server does not accept in requests that it proxies."""
