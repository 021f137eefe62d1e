"""Results of a test of nodes: for each node its performance and what is wrong with it, as text and for the server."""

from __future__ import annotations

import json
import os

from ganger.train.preflight.device_figures import HOST, DeviceFinding, is_measured, judge, performance_milli

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ganger.train.preflight.device_figures import NodeFigures
    from ganger.train.preflight.group_testing import Findings

RESULT_FILE = "preflight.json"
"""In the directory of the generation; the launcher sends it to the server."""


class MeasuredNode:
    """A node of the test.

    Attributes:
        node: Its place among the nodes of the job.
        host: Its host name.
        figures: What it measured, None if it did not report.
    """

    __slots__ = ("figures", "host", "node")

    def __init__(self, node: int, host: str, figures: NodeFigures | None) -> None:
        self.node, self.host, self.figures = node, host, figures


class NodeResult:
    """The result of one node.

    Attributes:
        findings: What is wrong with it, the first one most.
        performance_milli: To the usual one of the run, at most 1000.
    """

    __slots__ = ("findings", "performance_milli", "tested")

    def __init__(self, tested: MeasuredNode, findings: list[DeviceFinding], performance_milli: int) -> None:
        self.tested, self.findings, self.performance_milli = tested, findings, performance_milli

    @property
    def is_bad(self) -> bool:
        """True if no gang should run on it."""
        return any(finding.is_bad for finding in self.findings)


def join_results(
    tested: Sequence[MeasuredNode], pairs: Findings, pair_performance_milli: dict[str, int], tests: int
) -> list[NodeResult]:
    """Return the result of each node by its devices and by the tests of pairs, `tests` for each node."""
    reported = [index for index, node in enumerate(tested) if node.figures is not None]
    figures = [node.figures for node in tested if node.figures is not None]
    of_devices = dict(zip(reported, performance_milli(figures)))
    findings: list[list[DeviceFinding]] = [[] for _ in tested]
    for finding in judge(figures):
        findings[reported[finding.node]].append(finding)
    results = []
    for index, node in enumerate(tested):
        own, name = findings[index], str(index)
        if node.figures is None:
            own.append(DeviceFinding(index, HOST, "silent", "it did not report in time", is_bad=True))
        for failures, is_bad in ((pairs.nodes.get(name), True), (pairs.suspects.get(name), False)):
            if failures:
                sentence = f"{failures} of {tests} tests of it failed"
                own.append(DeviceFinding(index, HOST, "pair_tests", sentence, is_bad=is_bad))
        own.sort(key=lambda finding: not finding.is_bad)
        performance = min(of_devices.get(index, 0), pair_performance_milli.get(name, 1000))
        results.append(NodeResult(node, own, performance))
    return results


def result_text(results: Sequence[NodeResult], rounds: int, tests: int) -> str:
    """Return a line for each node that failed a test, or one that says that none did, and a line of JSON."""
    lines = [
        f"node {index} ({result.tested.host}) is {'bad' if finding.is_bad else 'suspect'}: {finding.sentence}"
        for index, result in enumerate(results)
        for finding in result.findings
    ]
    skipped = [node.figures.skipped for node in (result.tested for result in results) if node.figures is not None]
    skipped = [reason for reason in dict.fromkeys(skipped) if reason]
    document = {
        "nodes": len(results),
        "rounds": rounds,
        "bad": _by_node(results, is_bad=True),
        "suspect": _by_node(results, is_bad=False),
        "performance_milli": {str(index): result.performance_milli for index, result in enumerate(results)},
        "figures_gbps": {str(index): figures_of(result) for index, result in enumerate(results)},
    }
    if not lines:
        lines = [f"no test failed: {len(results)} nodes, {tests} tests of pairs of each"]
    lines += [f"GPUs are not measured: {reason}" for reason in skipped]
    return "\n".join([*lines, json.dumps(document), ""])


def _by_node(results: Sequence[NodeResult], *, is_bad: bool) -> dict[str, str]:
    """Return the nodes that are bad, or those that are suspect only, with the reason."""
    return {
        str(index): result.findings[0].sentence
        for index, result in enumerate(results)
        if result.findings and result.is_bad is is_bad
    }


def figures_of(result: NodeResult) -> dict[str, dict[str, float]]:
    """Return the figures of a node by device."""
    devices = result.tested.figures.devices if result.tested.figures is not None else []
    return {
        "host" if one.device == HOST else str(one.device): {
            name: round(value, 2) for name, value in one.figures_gbps.items() if is_measured(value)
        }
        for one in devices
        if not one.error
    }


def write_result(results: Sequence[NodeResult], directory: str) -> None:
    """Write the results for the launcher, at once or not at all. Raise OSError."""
    nodes = [
        {
            "node": result.tested.node,
            "performance_milli": result.performance_milli,
            "findings": [
                {
                    "code": finding.code,
                    "gpu": None if finding.device == HOST else finding.device,
                    "sentence": finding.sentence,
                    "is_bad": finding.is_bad,
                }
                for finding in result.findings
            ],
        }
        for result in results
    ]
    path = os.path.join(directory, RESULT_FILE)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"nodes": nodes}, file)
    os.replace(path + ".new", path)
