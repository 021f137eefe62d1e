"""One request to a Kubernetes cluster, as the caller's kubeconfig says: `python -m ganger.client.kubernetes`.

The request is JSON on stdin; the answers are JSON lines on stdout.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from ganger.errors import KUBERNETES_EXTRA, missing_module

OK, CANNOT = 0, 5


def main(argv: Sequence[str]) -> int:
    """Answer one request and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ganger.client.kubernetes", description=__doc__)
    parser.add_argument("--context", required=True)
    parser.add_argument("--namespace", help="unset: the context's")
    arguments = parser.parse_args(argv)
    try:
        from ganger.client.kubernetes.context_commands import ask
    except ModuleNotFoundError as error:
        why = {
            "code": "not_installed",
            "detail": missing_module(error),
            "next": KUBERNETES_EXTRA,
            "exit_code": CANNOT,
        }
        sys.stdout.write(json.dumps({"error": why}) + "\n")
        return OK
    return ask(arguments.context, arguments.namespace)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
