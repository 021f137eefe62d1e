"""The report of a comparison: one HTML file with a headline, charts and tables, which fetches nothing from other hosts.

It begins with what differs between the policies and by how much; pictures follow, then all figures, the rows of the
trace with a flaw, and definitions.
"""

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from ganger import __version__
from ganger.model.units import format_duration
from ganger.model.views.policy_differences import (
    NO_DIFFERENCE,
    compared_figures,
    differences,
    has_spread,
    headline,
    mean_runs,
    runs_by_policy,
)
from ganger.model.views.simulation_figures import STATISTICS, JsonObject
from ganger.simulation.json_output import Record
from ganger.simulation.metrics.wait_distribution import DURATION_CLASSES
from ganger.simulation.report.distribution_charts import (
    Curve,
    class_chart,
    cumulative_chart,
    difference_chart,
    range_chart,
)
from ganger.simulation.report.figure_tables import add_figures, add_findings
from ganger.simulation.report.gantt_chart import DOWNTIME, gantt_chart, reasons_of
from ganger.simulation.report.html_elements import add_key, add_paragraph, add_scroller, add_section
from ganger.simulation.report.stylesheet import STYLE
from ganger.simulation.report.time_charts import add_time_charts, end_ms, line_classes

DEFINITIONS: Final = {  # the last section of the report
    "completion time (JCT)": "From submission to end. n are the jobs that ended.",
    "wait": "The part of the completion time in which the job did not run, also after a preemption.",
    "95 % interval": (
        "Of a policy with several seeds: it has the mean with 95 % confidence, by Student's t. Differences are taken "
        "seed by seed. Policies whose intervals overlap have no difference beyond the spread, and none is marked best."
    ),
    "\N{PLUS-MINUS SIGN}": "The standard deviation over the seeds.",
    "percentiles": "Elements: p99 is the one at floor(0.99 n) of the sorted values.",
    "slowdown": "Completion time over the job's own duration, shorter ones taken for 10 s or 10 min.",
    "allocated": "GPU time that jobs had, of all GPU time from the first submission to the last end.",
    "occupancy": "Allocated, of what was asked for: with 1 no GPU is idle while a job waits for as many.",
    "Jain's index": "1 where tenants had the same GPU time, and 1/n where one had all.",
    "finish-time fairness": (
        "Completion time over what it would be alone on an equal part of the cluster, one for each job that was there "
        "meanwhile."
    ),
    "quota debt": "What a tenant asked for, was entitled to and did not get; all tenants are entitled to the same.",
    "longest wait": "Uninterrupted, of every job, ended or not.",
    "fragmented GPUs": (
        "What of the idle GPUs is of no use to what is typically asked for (Weng et al., 2023); the largest gang is "
        "the one that had room, with as many GPUs on each of its nodes. Unfit for the oldest job are idle GPUs that "
        "the job that had waited longest could not use."
    ),
    "across switches": "Gangs on nodes of several racks.",
    "GPU-hours moved": "Run before a job went on on other nodes.",
    "goodput, ETTR": (
        "Useful part of the allocated GPU time, and of the time between a job's first start and its end. Lost GPU time "
        "is by cause."
    ),
    "MTTI, MTTR": "Mean time to an interruption of a job, and from it to the next step of work.",
    "cycle": "A scheduling cycle, in processor time: the only figure that differs between equal runs.",
}
TIMES: Final = {"jct_ms": "completion time", "queueing_ms": "wait"}
CLASS_TEXT: Final = {
    "<1m": "under 1 min",
    "1m-10m": "1 to 10 min",
    "10m-1h": "10 min to 1 h",
    "1h-6h": "1 to 6 h",
    "6h-1d": "6 h to 1 d",
    ">=1d": "1 d and more",
}
"""Names of the duration classes in a chart."""


def comparison_report(answer: Record) -> str:
    """Return the page. `answer`: the answer of `sim compare`, with at least one run."""
    page = Element("html", {"lang": "en"})
    head, body = SubElement(page, "head"), SubElement(page, "body")
    title, basis = headline(answer)
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width"})
    SubElement(head, "title").text = f"{title}: {answer['trace']}"
    SubElement(head, "style").text = STYLE
    SubElement(body, "h1").text = title
    add_paragraph(body, f"{basis[0].upper()}{basis[1:]}.", "lead")
    add_paragraph(body, f"{_cluster_text(answer)}.", "soft")
    for failed in answer["failed"]:
        add_paragraph(body, f"{failed['name']} is missing: {failed['reason']}")
    charted_runs = [runs[0] for runs in runs_by_policy(answer).values()]
    _add_differences(body, answer)
    _add_waits(body, answer)
    _add_gantt_charts(body, charted_runs)
    add_time_charts(body, charted_runs, answer["gpus_in_all"])
    add_figures(body, answer)
    add_findings(body, answer)
    _add_definitions(body)
    footer = f"ganger {__version__}: the code that decides here is the one that decides on a cluster."
    add_paragraph(body, footer, "soft")
    return "<!doctype html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _cluster_text(answer: Record) -> str:
    jobs = answer["runs"][0]["scorecard"]["jobs"]
    costs = [
        f"{label} {format_duration(answer[name])}"
        for name, label in (("start_ms", "a start costs"), ("checkpoint_ms", "checkpoints every"))
        if answer[name]
    ]
    nodes = f"{answer['nodes']} nodes, {answer['gpus_in_all']} GPUs"
    rows = f"{jobs:,} jobs of {answer['rows']:,} rows of {answer['trace']}, format {answer['format']}"
    return ", ".join((rows, nodes, *costs))


def _add_differences(body: Element, answer: Record) -> None:
    """Add the chart of what differs from the first policy."""
    policies = list(runs_by_policy(answer))
    reference, *others = policies
    panels = [
        (figure.title, found)
        for figure in compared_figures(answer)
        if (found := differences(answer, figure, reference))
    ]
    if not others or not panels:
        return
    text = f"Change from {reference}: green is better, orange is worse."
    if has_spread(answer):
        text += f" Lines are 95 % intervals over the seeds; grey: {NO_DIFFERENCE}."
    section = add_section(body, f"Compared with {reference}", text)
    add_scroller(section, "differences").append(difference_chart(f"change from {reference}", others, panels))


def _add_waits(body: Element, answer: Record) -> None:
    """Add the distribution of waiting, by policy and by how long jobs run, and percentiles."""
    by_policy, means = runs_by_policy(answer), mean_runs(answer)
    text = "Share of the jobs that waited at most so long."
    if has_spread(answer):
        text += " Of several seeds the mean, in a band from the least to the most."
    section = add_section(body, "Wait", text)
    policies = [(policy, line_classes(index)) for index, policy in enumerate(by_policy)]
    add_key(section, [(policy, f"line {classes}") for policy, classes in policies])
    curves = [
        Curve(policy, [run["series"]["wait_quantiles_ms"] for run in by_policy[policy]], classes)
        for policy, classes in policies
        if all(run["series"]["wait_quantiles_ms"] for run in by_policy[policy])
    ]
    add_scroller(section, "waits").append(cumulative_chart("share of jobs by wait", curves))
    SubElement(section, "h3").text = "By how long jobs run"
    add_paragraph(section, "The mean is a dot, on a line from the median to p95; a wait of 0 is at the bottom.", "soft")
    by_class = [(policy, classes, means[policy]["wait_by_duration"]) for policy, classes in policies]
    counts = {key: max(of.get(key, {}).get("n") or 0 for _, _, of in by_class) for _, key in DURATION_CLASSES}
    classes = [(key, f"{CLASS_TEXT[key]}\n{count:,.0f} jobs") for key, count in counts.items() if count]
    add_scroller(section, "waits by duration").append(class_chart("wait by duration", classes, by_class))
    for name, label in TIMES.items():
        SubElement(
            section, "h3"
        ).text = f"Percentiles of the {label}, n = {answer['runs'][0]['scorecard'][name]['n']:,}"
        legend = "From the median (bar) by p95 (square) to p99 (arrow); the mean is a diamond."
        add_paragraph(section, legend, "soft")
        rows = [(policy, {of: run["scorecard"][name][of] for of in STATISTICS}) for policy, run in means.items()]
        add_scroller(section, label).append(range_chart(label, rows))


def _add_gantt_charts(body: Element, runs: Sequence[JsonObject]) -> None:
    small_runs = [run for run in runs if run["gantt"]]
    if not small_runs:
        return
    text = "Each row is a GPU; jobs that follow each other differ in colour, not in kind."
    hidden = sum(not node["gpus"] for node in small_runs[0]["gantt"]["nodes"])
    if hidden:
        text += f" {hidden} nodes without GPUs are not drawn."
    section = add_section(body, "Nodes", text)
    gantts = [run["gantt"] for run in small_runs]
    add_key(section, [("idle", "box free"), *((DOWNTIME[reason], f"box {reason}") for reason in reasons_of(gantts))])
    to_ms = max(end_ms(run) for run in small_runs)
    for run in small_runs:
        add_scroller(section, run["name"]).append(gantt_chart(run["name"], run["gantt"], to_ms))


def _add_definitions(body: Element) -> None:
    definitions = SubElement(add_section(body, "Definitions"), "dl")
    for term, text in DEFINITIONS.items():
        SubElement(definitions, "dt").text = term
        SubElement(definitions, "dd").text = text
