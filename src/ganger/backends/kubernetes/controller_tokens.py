"""What a person's ticket to the controller is made of: a token of the API server's, whose audiences say who asks.

Asked for by `client.kubernetes.controller_requests`, read by `controller.token_review`. `ganger install` prints the
account, and the policy that holds the audiences to whoever asks (questions.yaml)."""

from typing import Final

from ganger.backends.kubernetes.custom_resources import GROUP

ASKER: Final = "ganger-asker"
"""The account, and the role of those who may ask."""
CONTROLLER: Final = f"{GROUP}/controller"
ALL_JOBS: Final = f"{GROUP}/all-jobs"
"""Of those who may list the jobs of all namespaces."""
USER: Final = f"{GROUP}/user/"
"""Behind it stands a name."""
HEADER: Final = "ganger-authorization"
"""The API server takes the usual one for itself, and passes it on to nobody."""
TRIAL: Final = "gangerDryRun"
"""In place of the parameter `dryRun`, which the API server refuses in what it only passes on."""
