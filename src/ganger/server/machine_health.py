"""Faults of machines: checks over each sample of their agents, and what they find as events.

On Kubernetes each machine is a node. The server's own machine stands for several where they are virtual:
a fault of a GPU is one of the node that has the GPU. One of the machine counts against its only node and nothing is
done about it: jobs have no other machine to go to, and a virtual node has no disk of its own.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ganger import registry
from ganger.check_api.rule import RuleBook
from ganger.check_api.rule_tables import OWN_RULES
from ganger.check_api.run_checks import ChecksState, run_checks
from ganger.check_api.site_rules import SiteRulesError, read_site_rules
from ganger.engine.loop import Loop
from ganger.model.cluster import Node
from ganger.model.node_health.fault import Fault
from ganger.model.node_health.health_event import NodeFaulty
from ganger.model.node_health.node_sample import NodeSample
from ganger.settings import Home, SettingsError, read_agent_settings

_log = logging.getLogger("ganger")
_COLUMNS: Final = "docs/reference/node-checks.md has the columns"


Place = Callable[[Sequence[Fault]], Sequence[Fault]]
"""Returns faults of a machine as those of the nodes that it stands for."""


class SampleChecks:
    """Runs the checks over samples of machines, and reports what they find to the loop. For one thread.

    place: called with the faults of one machine before they are reported.
    """

    def __init__(self, loop: Loop, rules: RuleBook, place: Place) -> None:
        self._loop, self._rules, self._place = loop, rules, place
        self._checks, self._states = registry.checks(), dict[str, ChecksState]()

    def take(self, sample: NodeSample) -> None:
        """Check a sample."""
        state = self._states.get(sample.node, ChecksState())
        self._states[sample.node], faults = run_checks(state, sample, self._checks, self._rules)
        for fault in faults:
            _log.warning("%s (%s %s)", fault.sentence, fault.check, fault.code)
        placed = self._place(faults) if faults else ()
        if placed:
            self._loop.post_all(NodeFaulty(fault=fault) for fault in placed)

    def forget(self, machine: str) -> None:
        """Forget a machine that there is no more."""
        self._states.pop(machine, None)


def placed_faults(faults: Sequence[Fault], nodes: Sequence[Node]) -> list[Fault]:
    """Return faults of a machine as those of the nodes that it stands for; some are of none of several."""
    owners = {device: node.name for node in nodes for device in node.device_ids}
    placed = []
    for fault in faults:
        if fault.gpu is not None and fault.gpu in owners:
            placed.append(replace(fault, node=owners[fault.gpu]))
        elif len(nodes) == 1:
            placed.append(replace(fault, node=nodes[0].name, is_shadow=True))
    return placed


def rules_in_force(home: Home) -> RuleBook:
    """Return ganger's rules with those of the site. Raise SettingsError when its file cannot be read or is wrong."""
    path = read_agent_settings(home).get("rules")
    if path is None:
        return OWN_RULES
    try:
        return _read_rules(Path(path))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", f"correct `rules` in {home.settings_file}") from None
    except (SiteRulesError, UnicodeDecodeError) as error:
        raise SettingsError(str(error), _COLUMNS) from None


def rules_of_cluster(path: Path | None) -> RuleBook:
    """Return ganger's rules with those of the site, if there is such a file.

    Wrong ones are logged and left out: they are no reason for a cluster to have no controller.
    """
    try:
        return OWN_RULES if path is None else _read_rules(path)
    except FileNotFoundError:
        return OWN_RULES
    except (OSError, SiteRulesError, UnicodeDecodeError) as error:
        _log.error("the rules of the site are left out: %s; %s", error, _COLUMNS)
        return OWN_RULES


def _read_rules(path: Path) -> RuleBook:
    return read_site_rules(str(path), path.read_text(encoding="utf-8"), OWN_RULES, tuple(registry.checks()))
