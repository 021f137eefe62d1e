"""Command that writes the chart, and lints it where Helm is built: `make chart`, or `python -m tools.chart FOLDER`."""

import subprocess
import sys
from pathlib import Path

from tools.chart import helm, write_chart
from tools.testcluster import Unavailable


def main(folder: str) -> int:
    """Write the chart; return the exit code of `helm lint`."""
    chart = write_chart(Path(folder))
    print(chart)
    try:
        program = helm.build()
    except Unavailable as error:
        print(f"not linted: {error}", file=sys.stderr)
        return 0
    return subprocess.run([program, "lint", "--strict", str(chart)], check=False).returncode


sys.exit(main(sys.argv[1]))
