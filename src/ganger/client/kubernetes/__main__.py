"""One request to a Kubernetes cluster with the caller's kubeconfig: `python -m ganger.client.kubernetes`.

The request is JSON on stdin; the responses are JSON lines on stdout.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from ganger.errors import KUBERNETES_EXTRA, missing_module_message

OK, NOT_INSTALLED = 0, 5


def main(argv: Sequence[str]) -> int:
    """Run one request and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ganger.client.kubernetes", description=__doc__)
    parser.add_argument("--context", required=True)
    parser.add_argument("--namespace", help="unset: the context's namespace")
    arguments = parser.parse_args(argv)
    try:
        from ganger.client.kubernetes.context_commands import run_request
    except ModuleNotFoundError as error:
        record = {
            "code": "not_installed",
            "detail": missing_module_message(error),
            "next": KUBERNETES_EXTRA,
            "exit_code": NOT_INSTALLED,
        }
        sys.stdout.write(json.dumps({"error": record}) + "\n")
        return OK
    return run_request(arguments.context, arguments.namespace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
