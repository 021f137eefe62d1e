"""The dialects of GPU sharing, as the controller reads and writes them."""

from collections.abc import Iterator

from ganger.backends.kubernetes.gpus.sharing_dialects import DIALECTS, SharingDialect
from tools.generate.markdown import code, table

HEAD = (
    "dialect",
    "a pod asks with",
    "on nodes with the plugin",
    "annotations of a bound pod",
    "lock of a node",
    "devices of placed pods",
)


def sharing_dialects() -> Iterator[str]:
    """Return a table with a row for each dialect."""
    return table(HEAD, map(_row, DIALECTS))


def _row(dialect: SharingDialect) -> tuple[str, ...]:
    kind = "resources" if dialect.resources else "annotations"
    asks = f"{kind} {', '.join(map(code, dialect.asks_with))}"
    reads = "their reservation pod" if dialect.is_reserved else code(dialect.reads)
    lock = f"{code(dialect.lock)}, until its plugin has allocated" if dialect.lock else ""
    return (dialect.program, asks, code(dialect.plugin), ", ".join(map(code, dialect.writes)), lock, reads)
