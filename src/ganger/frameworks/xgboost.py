"""XGBoost: `xgboost.collective.CommunicatorContext()` with no arguments.

Processes meet at a tracker that somebody else must run (xgboost/tracker.py): ganger starts it beside rank 0. It numbers
them by DMLC_TASK_ID as text, hence the zeros in front.
"""

from typing import Final

from ganger.model.command_line import interpreter
from ganger.model.placed import RESERVED as SHARED
from ganger.model.placed import TASK_DIRECTORY, Placed, shared_environment, threads

NAME: Final = "xgboost"
DOC: Final = "XGBoost: collective.CommunicatorContext() finds the tracker, which ganger runs"
RESERVED: Final = (*SHARED, "DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER")
NEEDS: Final = "xgboost"

_TRACKER: Final = "xgboost_tracker.py"
_PROGRAM: Final = '''\
"""The tracker of this job, run by ganger beside rank 0: python xgboost_tracker.py ADDRESS PORT WORKERS."""
import sys

from xgboost.tracker import RabitTracker

address, port, workers = sys.argv[1:]
tracker = RabitTracker(n_workers=int(workers), host_ip=address, port=int(port), sortby="task")
tracker.start()
tracker.wait_for()
'''
_BESIDE: Final = '"$1" "$2" "$3" "$4" "$5" & shift 5; exec "$@"'
"""The first five words are the tracker's command, which runs in the background; the rest is the user's."""


def rank_environment(placed: Placed, rank: int) -> dict[str, str]:
    """The variables of the process `rank`."""
    digits = len(str(placed.world_size - 1))
    return shared_environment(placed, rank) | {
        "DMLC_TRACKER_URI": placed.host,
        "DMLC_TRACKER_PORT": str(placed.port),
        "DMLC_TASK_ID": f"{rank:0{digits}}",
        "DMLC_NUM_WORKER": str(placed.world_size),
        "OMP_NUM_THREADS": str(threads(placed, rank)),
    }


def rank_command(placed: Placed, rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The user's command; at rank 0 beside the tracker."""
    if rank:
        return argv
    size = str(placed.world_size)
    tracker = (interpreter(argv), f"{TASK_DIRECTORY}/{_TRACKER}", placed.host, str(placed.port), size)
    return ("/bin/sh", "-c", _BESIDE, "ganger", *tracker, *argv)


def files(_placed: Placed) -> dict[str, str]:
    """The tracker's program."""
    return {_TRACKER: _PROGRAM}
