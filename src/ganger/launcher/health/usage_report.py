"""Processor time and memory of each rank, for a server that cannot read this machine's /proc."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ganger.launcher.health.proc_stats import ProcStat
    from ganger.launcher.protocol.link import MessageSender

FIRST_S = 2.0
EVERY_S = 10.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class UsageReport:
    """Reports of what the ranks use, as rates since the report before."""

    def __init__(self, sender: MessageSender) -> None:
        self._sender = sender
        self._since_s, self._due_s = 0.0, 0.0
        self._ticks: dict[tuple[int, int], int] | None = None  # by pid and start time

    def scanned(self, of_ranks: Mapping[int, Sequence[ProcStat]], at_s: float) -> None:
        """Report when it is due. `of_ranks`: the processes of each rank at this time."""
        if at_s < self._due_s:
            return
        before = self._ticks
        self._due_s = at_s + (FIRST_S if before is None else EVERY_S)
        if before is not None:
            # A process that is new counts from 0; what one has used that has ended since is lost.
            ranks = {rank: _use(processes, before, at_s - self._since_s) for rank, processes in of_ranks.items()}
            self._sender.send_update("rank_usage", ranks=ranks)
        self._since_s = at_s
        self._ticks = {
            (process.pid, process.start_ticks): process.ticks for ranked in of_ranks.values() for process in ranked
        }


def _use(processes: Sequence[ProcStat], before: Mapping[tuple[int, int], int], span_s: float) -> list[int]:
    """Return thousandths of a processor, resident bytes, and the number of processes."""
    ticks = sum(process.ticks - before.get((process.pid, process.start_ticks), 0) for process in processes)
    pages = sum(process.pages for process in processes)
    return [round(1000 * ticks / TICKS_PER_S / span_s), PAGE_BYTES * pages, len(processes)]
