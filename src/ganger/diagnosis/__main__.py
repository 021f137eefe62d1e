"""The program behind `ganger diagnose`: `python -m ganger.diagnosis PATH` reads a folder of logs, or one file.

Prints one JSON object on the last line: the diagnosis, or `error` and `next` and exit code 2."""

import json
import sys
from pathlib import Path

from ganger.diagnosis.diagnose_logs import diagnose_logs, diagnosis_json

OK, USAGE, INTERRUPTED = 0, 2, 130


def main(path: Path) -> int:
    """Diagnose the logs there, print the result and return the exit code."""
    try:
        answer = diagnosis_json(diagnose_logs(path))
    except OSError as error:
        answer = {"error": f"{path}: {error.strerror}", "next": f"ls -l {path}"}
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write(json.dumps(answer) + "\n")
    return USAGE if "error" in answer else OK


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
