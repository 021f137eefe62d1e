"""The end of the server's own machine: notices of its cloud become preemptions of all its nodes.

Once the notice is withdrawn, or the machine is back, as after the stop of a spot instance that starts again, the nodes
that were in service before return to it. A file tells which, since the server may end in between.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ganger.agent.cloud_notices import Notice
from ganger.agent.notice_watch import UnknownCloudError, watch
from ganger.engine.loop import Loop
from ganger.model.cluster import NodeState
from ganger.model.event import NodePreempted, NodeUncordoned
from ganger.ports import Backend
from ganger.settings import Home, SettingsError, read_notices_setting

_log = logging.getLogger("ganger")


@contextmanager
def reporting_own_end(home: Home, loop: Loop, backend: Backend) -> Iterator[None]:
    """Report the notices for the duration of the context. Raise SettingsError for a cloud that is not known."""
    try:
        with watch(read_notices_setting(home), lambda notice: _report(home, loop, backend, notice)):
            yield
    except UnknownCloudError as error:
        remedy = 'write it as in `notices = "off"`, or `notices = "aws"`'
        raise SettingsError(f"{home.settings_file}: notices: {error}", remedy) from None


def _report(home: Home, loop: Loop, backend: Backend, notice: Notice | None) -> None:
    if notice is None:
        _return_nodes(home, loop, backend)
        return
    _log.warning("%s takes this machine back in %.0f s (%s)", notice.cloud, notice.left_s, notice.event)
    with loop.view() as state:
        states = {node.name: state.nodes.states[state.nodes.index[node.name]] for node in state.nodes.listing.nodes}
    left_ms = round(1000 * notice.left_s)
    loop.post_all(NodePreempted(node=name, notice_ms=left_ms, by=notice.cloud) for name in states)
    if not home.preempted_nodes.exists():  # a second notice finds nodes out of service that were in it
        in_service = [name for name, node_state in states.items() if node_state is NodeState.READY]
        try:
            home.preempted_nodes.write_text(json.dumps(in_service))
        except OSError as error:  # a full disk must not keep jobs from saving
            by_hand = f"return its nodes once it is back: ganger node uncordon {' '.join(in_service)}"
            _log.warning("%s cannot be written: %s; %s", home.preempted_nodes, error.strerror, by_hand)


def _return_nodes(home: Home, loop: Loop, backend: Backend) -> None:
    """Return to service the nodes that an earlier notice took out of it."""
    try:
        names = json.loads(home.preempted_nodes.read_text())
    except FileNotFoundError:
        return
    except ValueError:
        names = []  # cut off by the end that it announced: an administrator returns the nodes
    with loop.view() as state:
        listed = names if isinstance(names, list) else []
        known = [name for name in listed if isinstance(name, str) and name in state.nodes.index]
        lost = [name for name in known if state.nodes.is_lost(name)]
    for name in lost:
        backend.return_node(name)
    loop.post_all(NodeUncordoned(node=name, by="cloud") for name in known)
    home.preempted_nodes.unlink()
