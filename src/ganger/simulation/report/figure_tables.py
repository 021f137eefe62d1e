"""The tables of the report: a row for each policy, the best of each column bold where it is beyond the spread.

Each figure carries its exact number in `data-value`.
"""

from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement

from ganger.model.views.policy_differences import NO_DIFFERENCE, Best, best, estimates, has_spread
from ganger.model.views.simulation_figures import (
    ROW_UNITS,
    Figure,
    Row,
    Table,
    iter_rows,
    iter_tables,
    job_set_notes,
)
from ganger.simulation.json_output import Record
from ganger.simulation.report.html_elements import add_paragraph, add_scroller, add_section

NO_DIFFERENCE_SIGN: Final = "\N{ALMOST EQUAL TO}"


def add_figures(body: Element, answer: Record) -> None:
    """Add all tables, and what is to be known of the jobs that they are of."""
    text = "The best of a column is bold."
    if has_spread(answer):
        text += f" {NO_DIFFERENCE_SIGN} below a column: {NO_DIFFERENCE}, the 95 % intervals over seeds overlap."
    section = add_section(body, "Figures", text)
    for note in job_set_notes(answer):
        add_paragraph(section, note)
    rows = list(iter_rows(answer))
    for table in iter_tables(rows):
        _add_table(section, answer, rows, table)
    for run in answer["runs"]:
        for reason, count in run["unended"].items():
            add_paragraph(section, f"{run['name']}: {count:,} jobs did not finish: {reason}")


def add_findings(body: Element, answer: Record) -> None:
    """Add the rows of the trace with a flaw."""
    section = add_section(body, "Rows of the trace", "Rows with a flaw: what was left out, what was kept, and why.")
    if not answer["findings"]:
        add_paragraph(section, "None: every row is a job, and every job fits the cluster.")
        return
    unit = ROW_UNITS.get(answer["format"], "line")
    table = SubElement(add_scroller(section, "rows with a flaw"), "table", {"class": "words"})
    row = SubElement(SubElement(table, "thead"), "tr")
    for title in ("rows", "", "flaw", "the first of them"):
        SubElement(row, "th").text = title
    rows = SubElement(table, "tbody")
    for finding in answer["findings"]:
        row = SubElement(rows, "tr")
        examples = "; ".join(f"{unit} {example['line']}: {example['what']}" for example in finding["first"])
        SubElement(row, "td", {"data-value": str(finding["count"])}).text = f"{finding['count']:,}"
        kept = "kept" if finding["kept"] else "left out"
        for text in (kept, f"{finding['flaw']}: {finding['meaning']}", examples):
            SubElement(row, "td").text = text


def _add_table(section: Element, answer: Record, rows: Sequence[Row], table: Table) -> None:
    element = SubElement(add_scroller(section, ", ".join(figure.title for figure in table.figures)), "table")
    head = SubElement(SubElement(element, "thead"), "tr")
    SubElement(head, "th").text = "policy"
    for figure in table.figures:
        SubElement(head, "th", {"class": "group"} if figure.starts_group else {}).text = figure.title
    body = SubElement(element, "tbody")
    best_by_figure = [best(estimates(answer, figure), figure) for figure in table.figures]
    for row in rows:
        line = SubElement(body, "tr", {} if row.counts else {"class": "spread"})
        SubElement(line, "td").text = row.name
        for figure, best_policies in zip(table.figures, best_by_figure, strict=True):
            _add_figure(line, row, figure, best_policies)
    if has_spread(answer):
        _add_signs(SubElement(SubElement(element, "tfoot"), "tr"), table.figures, best_by_figure)


def _add_figure(line: Element, row: Row, figure: Figure, best_policies: Best) -> None:
    value = figure.of(row.run)
    is_best = row.counts and best_policies.is_beyond_spread and row.policy in best_policies.policies
    classes = " ".join([*["group"] * figure.starts_group, *["best"] * is_best])
    cell = SubElement(line, "td", {"data-value": str(value), **({"class": classes} if classes else {})})
    cell.text = "-" if value is None else figure.text(value)


def _add_signs(line: Element, figures: Sequence[Figure], best_by_figure: Sequence[Best]) -> None:
    """Add a row that marks the columns in which no policy is better than another beyond the spread."""
    SubElement(line, "td").text = ""
    for figure, best_policies in zip(figures, best_by_figure, strict=True):
        cell = SubElement(line, "td", {"class": "group"} if figure.starts_group else {})
        if not best_policies.is_beyond_spread:
            cell.set("title", NO_DIFFERENCE)
            cell.text = NO_DIFFERENCE_SIGN
