"""Output of `ganger sim run` for useful and lost GPU time, and for the closed form of goodput."""

from collections.abc import Callable
from typing import Any, Final

from ganger.cli.output.plural import count
from ganger.cli.output.print_output import Column, show, show_table
from ganger.cli.sim.sim_options import show_findings
from ganger.cli.sim.simulation_process import Record
from ganger.model.units import DEVICE_MILLI, HOUR_MS, format_duration

_LOST: Final = {
    "start": "first starts",
    "restart": "restarts",
    "checkpoint": "writing checkpoints",
    "rollback": "work after the newest checkpoint",
    "detection": "until a loss was detected",
    "stop": "until stopped attempts had ended",
}
_WAITED: Final = {
    "waiting_for_nodes_gpu_us": "waiting for a node, after a loss",
    "waiting_after_stops_gpu_us": "waiting again, after a stop",
}


def show_faults(result: Record) -> None:
    """Show the source of the node faults and its flaws, and that it ends before the run if it does."""
    faults = result.get("faults")
    if faults is None:
        return
    spares = f", {count(faults['spares'], 'node')} held back" if faults["spares"] else ""
    show(f"{count(faults['outages'], 'outage')} from {count(faults['rows'], 'fault')} of {faults['file']}{spares}")
    show_findings(faults)
    if faults["days"] < faults["days_of_run"]:
        show(f"  the faults end after {faults['days']:.0f} days, the run on day {faults['days_of_run']:.0f}")


def show_goodput(result: Record) -> None:
    """Show useful and lost GPU time if any was lost, met deadlines, and the closed form."""
    goodput = result["goodput"]
    if goodput is None:
        return
    lost = {label: goodput["lost_gpu_us"][cause] for cause, label in _LOST.items() if goodput["lost_gpu_us"][cause]}
    if lost:
        show()
        rows = [("useful", goodput["useful_gpu_us"]), *lost.items()]
        shares = [[label, _hours(gpu_time), _share(gpu_time / goodput["allocated_gpu_us"])] for label, gpu_time in rows]
        waited = [[label, _hours(goodput[name]), "-"] for name, label in _WAITED.items() if goodput[name]]
        columns = (Column("GPU TIME"), Column("HOURS", right=True), Column("% OF ALLOCATED", right=True))
        show_table(columns, [*shares, *waited], "")
    if goodput["deadlines"]:
        show(f"{'deadlines met':36}{goodput['met']} of {goodput['deadlines']}")
    if result["forecast"] is not None:
        _show_closed_form(result["forecast"], goodput)


def _show_closed_form(forecast: Record, goodput: Record) -> None:
    """Show the figures of the closed form beside those of the simulation."""
    figures: list[tuple[str, Any, Any, Callable[[float], str]]] = [
        ("goodput", forecast["goodput"], goodput["goodput"], _share),
        ("ETTR", forecast["ettr"], goodput["ettr"], _share),
        ("mean time to interruption", forecast["mtti_ms"], goodput["mtti_ms"], _time),
        ("mean wait for a node", forecast["waiting_ms"], goodput["waiting_ms"]["mean"], _time),
    ]
    show()
    show_table(
        (Column("FIGURE"), *(Column(title, right=True) for title in ("CLOSED FORM", "SIMULATION", "DIFFERENCE"))),
        [
            [label, _or_dash(expected, text), _or_dash(simulated, text), _difference(expected, simulated, text)]
            for label, expected, simulated, text in figures
        ],
        "",
    )
    show(f"{'interruptions':36}{goodput['interruptions']}")
    show(f"{'mean time to recovery':36}{_or_dash(goodput['recovery_ms']['mean'], _time)}")
    if forecast["young_ms"] is not None:
        optimum = f"{_time(forecast['young_ms'])} (Young), {_time(forecast['daly_ms'])} (Daly)"
        show(f"{'optimal checkpoint interval':36}{optimum}, for a job on {count(forecast['widest'], 'node')}")


def _difference(expected: float | None, simulated: float | None, text: Callable[[float], str]) -> str:
    """Return the simulated minus the expected value, with its sign."""
    if expected is None or simulated is None:
        return "-"
    return ("-" if simulated < expected else "+") + text(abs(simulated - expected))


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _hours(gpu_time: int) -> str:
    return f"{gpu_time / DEVICE_MILLI / HOUR_MS:.1f}"


def _share(value: float) -> str:
    return f"{value:.2%}"


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)
