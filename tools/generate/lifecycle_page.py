"""The page of the lifecycles: state diagrams in Mermaid, and the tables of reactions."""

from pathlib import Path
from typing import Final

from ganger.core.failure.reactions import REACTIONS, Action, Ending, Member, Reaction
from ganger.core.node_health.health_lifecycle import HEALTH
from ganger.core.state.lifecycle import DURABLE, GANG, NODE, Phase

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "lifecycle.md"


def page() -> str:
    """Return the text of the page."""
    sources = "Generated from `core/state/lifecycle.py`, `core/node_health/health_lifecycle.py` and "
    sources += "`core/failure/reactions.py`; do not edit."
    lines = ["# Lifecycles of a gang and of a node", "", sources, ""]
    lines += ["## Gang", "", "States marked * are durable: they need no work after a restart of the server.", ""]
    lines += ["```mermaid", "stateDiagram-v2", "    [*] --> pending"]
    lines += [f'    state "{state} *" as {state}' for state in DURABLE]
    lines += [f"    {origin} --> {target}: {step}" for (origin, step), target in GANG.items()]
    lines += ["```", "", "## Node", "", "```mermaid", "stateDiagram-v2", "    [*] --> ready"]
    lines += [f"    {origin} --> {target}: {step}" for (origin, step), target in NODE.items()]
    lines += ["```", "", "## Health of a node", "", "```mermaid", "stateDiagram-v2", "    [*] --> healthy"]
    lines += [f"    {origin} --> {target}: {step}" for (origin, step), target in HEALTH.items()]
    return "\n".join([*lines, "```", "", *_reactions(), ""])


def _reactions() -> list[str]:
    """Return a table for each member; after the first, only the rows that differ from it."""
    lines = ["## Reactions to an end", ""]
    for terms in (Member, Phase, Action, Reaction):
        lines += [f"*{terms.__name__}.* {' '.join((terms.__doc__ or '').split())}", ""]
    lines += [f"*Ending.* {' '.join((Ending.__doc__ or '').split())}", ""]
    for member in Member:
        rows = {ending: [str(REACTIONS[member, ending, phase]) for phase in Phase] for ending in Ending}
        worker = {ending: [str(REACTIONS[Member.WORKER, ending, phase]) for phase in Phase] for ending in Ending}
        different = {ending: row for ending, row in rows.items() if member is Member.WORKER or row != worker[ending]}
        lines += [f"### {member}", ""]
        if different:
            lines += [f"| | {' | '.join(Phase)} |", "|---" * (1 + len(Phase)) + "|"]
            lines += [f"| {ending} | {' | '.join(row)} |" for ending, row in different.items()] + [""]
        if member is not Member.WORKER:
            lines += [f"{'All others' if different else 'All'} as for a worker.", ""]
    return lines[:-1]
