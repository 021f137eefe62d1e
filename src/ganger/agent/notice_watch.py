"""Watch for the notice that this machine is taken back.

A thread of its own asks every two seconds: half a minute is the shortest notice, and nothing else may delay it.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ganger.agent.cloud_notices import DIALECTS, INTERVAL_S, Metadata, MetadataError, Notice, detect_cloud

MAX_INTERVAL_S: Final = 30.0
"""Pause after failures, doubled each time: a cloud whose service is closed to this machine costs next to nothing."""
AUTO, OFF = "auto", "off"

_log = logging.getLogger(__name__)


class UnknownCloudError(Exception):
    """A setting that names no cloud, or an address that is none. The text is the end of a sentence."""


@contextmanager
def watch(setting: str, report: Callable[[Notice | None], None]) -> Iterator[None]:
    """Watch for the duration of the context.

    setting: `auto` (the cloud that the machine says it is in, if any), `off`, or a cloud, which an address may follow.
    report: called with each notice once, and with None when there is none, first of all or any more; again if it fails.

    Raise UnknownCloudError if the setting is none of these.
    """
    found = _service(setting)
    if found is None:
        yield
        return
    cloud, metadata = found
    is_over = threading.Event()
    arguments = (cloud, metadata, report, is_over)
    thread = threading.Thread(target=_watch, args=arguments, name="cloud-notices", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def _service(setting: str) -> tuple[str, Metadata] | None:
    name, _, address = setting.strip().partition(" ")
    if name == OFF or (name == AUTO and not (name := detect_cloud() or "")):
        return None
    if name not in DIALECTS:
        raise UnknownCloudError(f"{name!r} is not {AUTO}, {OFF} or one of {', '.join(DIALECTS)}")
    try:
        return name, Metadata(address.strip() or DIALECTS[name].address)
    except ValueError as error:
        raise UnknownCloudError(str(error)) from None


def _watch(cloud: str, metadata: Metadata, report: Callable[[Notice | None], None], is_over: threading.Event) -> None:
    reported: str | None = ""
    pause_s = INTERVAL_S
    while not is_over.is_set():
        try:
            notice = DIALECTS[cloud].read(metadata.exchange)
        except MetadataError as error:
            if pause_s == INTERVAL_S:
                _log.warning("no notice of this machine's end can be read: %s", error)
            pause_s = min(2 * pause_s, MAX_INTERVAL_S)
        else:
            event = notice and notice.event
            is_reported = event == reported or is_over.is_set() or _try(report, notice, is_first=pause_s == INTERVAL_S)
            reported = event if is_reported else reported
            pause_s = INTERVAL_S if is_reported else min(2 * pause_s, MAX_INTERVAL_S)
        is_over.wait(pause_s)


def _try(report: Callable[[Notice | None], None], notice: Notice | None, *, is_first: bool) -> bool:
    """Return whether a notice was reported. Whatever happens, the next one is read."""
    try:
        report(notice)
    except Exception:  # noqa: BLE001 - the thread is the only one that sees the end of the machine
        if is_first:
            _log.exception("a notice of this machine's end is not acted on, and is tried again")
        return False
    return True
