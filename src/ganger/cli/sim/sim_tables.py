"""The tables of `ganger sim compare`: a row for each run, or for the mean and the spread of several with other seeds.

Called by `cli.sim.sim_compare`, with the answer that JSON has.
"""

from collections.abc import Iterator, Sequence

from ganger.cli.output.tables import Column, show, show_table
from ganger.cli.sim.sim_options import Record
from ganger.model.views.simulation_figures import Figure, Row, rows_of, tables_of


def show_runs(told: Record) -> None:
    """All tables that have something to say of these runs."""
    rows = list(rows_of(told))
    for table in tables_of(rows):
        show()
        columns = [Column("POLICY"), *(Column(figure.title.upper(), right=True) for figure in table.figures)]
        show_table(columns, [[row.name, *_texts(row, table.figures)] for row in rows], "")


def _texts(row: Row, figures: Sequence[Figure]) -> Iterator[str]:
    for figure in figures:
        value = figure.of(row.run)
        yield "-" if value is None else figure.text(value)
