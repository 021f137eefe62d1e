"""XGBoost: the rendezvous of its processes, and the tracker that serves it.

ganger runs the tracker (xgboost/tracker.py) beside rank 0, and starts the processes when it listens, because they would
not wait for long. The tracker orders processes by DMLC_TASK_ID as text, hence the leading zeros. Scripts pass the
variables on: `collective.init` does not read the environment.
"""

from typing import Final

from ganger.framework_api.companion import companion
from ganger.framework_api.launcher_command import find_interpreter
from ganger.framework_api.rank_environment import RESERVED as SHARED
from ganger.framework_api.rank_environment import TASK_DIRECTORY, PlacedGang, shared_environment, thread_count

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


def rank_environment(placed: PlacedGang, rank: int) -> dict[str, str]:
    """Return the variables of the process `rank`."""
    digits = len(str(placed.world_size - 1))
    return shared_environment(placed, rank) | {
        "DMLC_TRACKER_URI": placed.host,
        "DMLC_TRACKER_PORT": str(placed.port),
        "DMLC_TASK_ID": f"{rank:0{digits}}",
        "DMLC_NUM_WORKER": str(placed.world_size),
        "OMP_NUM_THREADS": str(thread_count(placed, rank)),
    }


def rank_command(placed: PlacedGang, _rank: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the user's command, to be executed once the tracker listens."""
    return (find_interpreter(argv), f"{TASK_DIRECTORY}/{_FILE}", placed.host, str(placed.port_of(0)), *argv)


def files(_placed: PlacedGang) -> dict[str, str]:
    """Return the program that runs the tracker, and waits for it."""
    return {_FILE: companion("tracker", _TRACKER)}
