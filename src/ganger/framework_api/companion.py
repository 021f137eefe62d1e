"""A companion program of the ranks: rank 0 starts a service that all of them need, and each rank waits for it.

For frameworks whose rendezvous is a program: Horovod's store, XGBoost's tracker. The text of the program is written to
the generation's directory, and needs nothing but the job's own Python.
"""

from typing import Final

_TEXT: Final = '''\
"""Run by ganger: python FILE ADDRESS PORT COMMAND... begins COMMAND when the {what} is there, which listens at PORT.
Without COMMAND it is the {what}."""
import os
import socket
import subprocess
import sys
import time

SECONDS = 300.0
address, port, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


{serve}

def is_there():
    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def begin():
    first = os.environ["GANGER_RANK"] == "0"
    served = subprocess.Popen([sys.executable, *sys.argv[:3]]) if first else None
    deadline = time.monotonic() + SECONDS
    while not is_there():
        if served and served.poll() is not None:
            sys.exit("the {what} ended with %d before it was used" % served.returncode)
        if time.monotonic() > deadline:
            sys.exit("no {what} came up at %s:%d within %g s" % (address, port, SECONDS))
        time.sleep(0.05)
    os.execvp(command[0], command)


if command:
    begin()
else:
    serve()
'''


def companion(what: str, serve: str) -> str:
    """Return the program's text.

    Args:
        what: The name of the service.
        serve: The text of a function `serve()` that runs the service and may use `address` and `port`.
    """
    return _TEXT.format(what=what, serve=serve)
