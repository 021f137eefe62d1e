"""XGBoost: where its processes meet, and the tracker at which they do.

Somebody must run that tracker (xgboost/tracker.py): ganger does, beside rank 0, and lets the processes begin when it
listens, since they would not wait for long. It numbers them by DMLC_TASK_ID as text, hence the zeros in front. Scripts
pass the variables on: `collective.init` does not look into the environment.
"""

from typing import Final

from ganger.framework_api.companion import companion
from ganger.framework_api.launcher_command import interpreter
from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import TASK_DIRECTORY, Placed, shared_environment, threads

NAME: Final = "xgboost"
DOC: Final = "XGBoost: DMLC_TRACKER_URI, DMLC_TRACKER_PORT and DMLC_TASK_ID of a tracker that ganger runs"
RESERVED: Final = (*SHARED, "DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER")
NEEDS: Final = "xgboost"

_FILE: Final = "xgboost_rank.py"
_TRACKER: Final = """\
def serve():
    from xgboost.tracker import RabitTracker

    workers, at = int(os.environ["DMLC_NUM_WORKER"]), int(os.environ["DMLC_TRACKER_PORT"])
    tracker = RabitTracker(n_workers=workers, host_ip=address, port=at, sortby="task")
    tracker.start()
    # Not the tracker's own port: one that came there only to look would confuse it.
    ready = socket.create_server((address, port), backlog=workers)
    for _ in range(workers):
        ready.accept()[0].close()
    tracker.wait_for()
"""


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


def rank_command(placed: Placed, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The user's command, when the tracker is there."""
    return (interpreter(argv), f"{TASK_DIRECTORY}/{_FILE}", placed.host, str(placed.port_of(0)), *argv)


def files(_placed: Placed) -> dict[str, str]:
    """The program that waits, and is the tracker."""
    return {_FILE: companion("tracker", _TRACKER)}
