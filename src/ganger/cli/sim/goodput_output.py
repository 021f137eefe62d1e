"""What `ganger sim run` shows of useful and lost GPU time, and of the closed form. Called by `cli.sim.sim_commands`."""

from collections.abc import Callable
from typing import Any, Final

from ganger.cli.output.messages import count
from ganger.cli.output.print_output import Column, show, show_table
from ganger.cli.sim.sim_options import Record, show_findings
from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration

_LOST: Final = {
    "start": "first starts",
    "restart": "starts again",
    "checkpoint": "writing checkpoints",
    "rollback": "work after the newest checkpoint",
    "detection": "until a loss was known",
    "stop": "until what was stopped was gone",
}
_WAITED: Final = {
    "waiting_for_nodes": "waiting for a node, after a loss",
    "waiting_after_stops": "waiting again, after a stop",
}


def show_faults(told: Record) -> None:
    """Where faults come from, what of that has a flaw, and whether they end before the run."""
    faults = told.get("faults")
    if faults is None:
        return
    spares = f", {count(faults['spares'], 'node')} held back" if faults["spares"] else ""
    show(f"{count(faults['outages'], 'outage')}, made of {count(faults['rows'], 'fault')} of {faults['file']}{spares}")
    show_findings(faults)
    if faults["days"] < faults["days_of_run"]:
        show(f"  they end after {faults['days']:.0f} days, and the run goes on until day {faults['days_of_run']:.0f}")


def show_goodput(told: Record) -> None:
    """Where the GPU time went, if any of it was lost; and what the closed form says."""
    good = told["goodput"]
    if good is None:
        return
    lost = {words: good["lost"][name] for name, words in _LOST.items() if good["lost"][name]}
    if lost:
        show()
        rows = [("useful", good["useful"]), *lost.items()]
        shares = [[words, _hours(gpu_time), f"{100 * gpu_time / good['allocated']:.2f}"] for words, gpu_time in rows]
        waited = [[words, _hours(good[name]), "-"] for name, words in _WAITED.items() if good[name]]
        columns = (Column("GPU TIME"), Column("HOURS", right=True), Column("% OF ALLOCATED", right=True))
        show_table(columns, [*shares, *waited], "")
    if good["deadlines"]:
        show(f"{'deadlines met':36}{good['met']} of {good['deadlines']}")
    if told["forecast"] is not None:
        _show_forecast(good, told["forecast"])


def _show_forecast(good: Record, said: Record) -> None:
    """The simulation beside the closed form."""
    rows: list[tuple[str, Any, Any, Callable[[float], str]]] = [
        ("goodput", said["goodput"], good["goodput"], _share),
        ("ETTR", said["ettr"], good["ettr"], _share),
        ("mean time to an interruption", said["mtti_ms"], good["mtti_ms"], _time),
        ("mean wait for a node", said["waiting_ms"], good["waiting_ms"]["mean"], _time),
    ]
    show()
    show_table(
        (Column("CLOSED FORM AND SIMULATION"), *(Column(title, right=True) for title in ("FORM", "RUN", "DIFFERENCE"))),
        [
            [words, _or_dash(form, text), _or_dash(run, text), _difference(form, run, text)]
            for words, form, run, text in rows
        ],
        "",
    )
    recovery = good["recovery_ms"]
    show(f"{'interruptions':36}{good['interruptions']}")
    show(f"{'mean time to recover':36}{_or_dash(recovery['mean'], _time)}")
    if said["young_ms"] is not None:
        best = f"{_time(said['young_ms'])} (Young), {_time(said['daly_ms'])} (Daly)"
        show(f"{'best interval of checkpoints':36}{best}, for a job on {count(said['widest'], 'node')}")


def _difference(form: float | None, run: float | None, text: Callable[[float], str]) -> str:
    """By how much the run is more than the form, or less."""
    if form is None or run is None:
        return "-"
    return ("-" if run < form else "+") + text(abs(run - form))


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _hours(gpu_time: int) -> str:
    return f"{gpu_time / DEVICE_MILLI / HOUR_MS:.1f}"


def _share(value: float) -> str:
    return f"{value:.4f}"


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)
