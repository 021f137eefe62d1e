"""A job as a small table of HTML, for notebooks. Called by `job`."""

from html import escape
from typing import Final

from ganger.model.views.service_views import JobRow

_COLOURS: Final = {"succeeded": "#2e7d32", "failed": "#c62828", "running": "#1565c0"}
_OTHER_COLOUR: Final = "#616161"


def card(row: JobRow) -> str:
    """What it is, how it is, where, and why: each line only where there is something to say."""
    colour = _COLOURS.get(row.state, _OTHER_COLOUR)
    state = f'<span style="color:{colour};font-weight:bold">{escape(row.state)}</span>'
    lines = {
        "job": f"<b>{escape(row.id)}</b>",
        "state": state,
        "size": escape(row.shape),
        "queue": escape(row.queue),
        "nodes": escape(", ".join(row.nodes)),
        "why": escape(row.sentence),
    }
    cells = "".join(f"<tr><th>{name}</th><td>{said}</td></tr>" for name, said in lines.items() if said)
    return f'<table style="text-align:left">{cells}</table>'
