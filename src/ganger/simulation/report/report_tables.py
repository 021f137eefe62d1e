"""The tables of the report of a comparison: a row for each run, or for mean and spread of a policy's runs with several
seeds. Called by `simulation.report.html_report`. Each figure carries its exact number in `data-value`; the best of a
column is bold."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement

from ganger.model.views.simulation_figures import Figure, Row, rows_of, tables_of
from ganger.simulation.result import Record


def fill_tables(section: Element, told: Record) -> None:
    """All that have something to say of these runs. `told`: the answer of `sim compare`."""
    rows = list(rows_of(told))
    for table in tables_of(rows):
        _fill(section, rows, table.figures)


def _fill(section: Element, rows: Sequence[Row], figures: Sequence[Figure]) -> None:
    """A table, in which the best of each column is bold, unless all are equal."""
    table = SubElement(SubElement(section, "div", {"class": "wide"}), "table")
    head = SubElement(SubElement(table, "thead"), "tr")
    SubElement(head, "th").text = "policy"
    for figure in figures:
        SubElement(head, "th", {"class": "group"} if figure.begins else {}).text = figure.title
    body = SubElement(table, "tbody")
    tops = [_top(rows, figure) for figure in figures]
    for row in rows:
        line = SubElement(body, "tr")
        SubElement(line, "td").text = row.name
        for figure, top in zip(figures, tops, strict=True):
            value = figure.of(row.run)
            is_best = row.counts and value is not None and value == top
            looks = " ".join([*["group"] * figure.begins, *["best"] * is_best])
            cell = SubElement(line, "td", {"data-value": str(value), **({"class": looks} if looks else {})})
            cell.text = "-" if value is None else figure.text(value)


def _top(rows: Sequence[Row], figure: Figure) -> float | None:
    there = [value for row in rows if row.counts and (value := figure.of(row.run)) is not None]
    return figure.best(there) if figure.best is not None and len(set(there)) > 1 else None
