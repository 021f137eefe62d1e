"""The Helm chart of ganger, written from the manifests that `ganger install` prints: `python -m tools.chart FOLDER`.

The manifests stay the one source: a template is a manifest with values in place of what sites choose. Nothing of the
chart is in the repository but this package.
"""

from pathlib import Path

from ganger import __version__
from tools.chart import templates, values

NAME = "ganger"


def write_chart(folder: Path) -> Path:
    """Write the chart into FOLDER/ganger, and return that."""
    chart = folder / NAME
    for path, text in files().items():
        (chart / path).parent.mkdir(parents=True, exist_ok=True)
        (chart / path).write_text(text)
    return chart


def files() -> dict[str, str]:
    """Return the files of the chart by their paths in it."""
    return {
        "Chart.yaml": _CHART,
        "values.yaml": values.document(),
        "values.schema.json": values.schema(),
        **{f"templates/{name}": text for name, text in templates.files().items()},
    }


_CHART = f"""\
apiVersion: v2
name: {NAME}
description: Gang scheduler for training jobs, its custom resources and its controller.
type: application
version: {__version__}
appVersion: "{__version__}"
kubeVersion: ">=1.35.0-0"
"""
