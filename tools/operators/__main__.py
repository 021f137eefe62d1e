"""`python -m tools.operators [NAME ...]`: build what is not built, of those named or all. `make operators` calls it.

Exit codes: 0 done, 1 failed, 3 this machine has no Go.
"""

import subprocess
import sys

from tools.operators.programs import OPERATORS, build
from tools.testcluster.programs.requirements import Unavailable

UNAVAILABLE = 3


def main() -> int:
    """Build the operators; return the exit code."""
    try:
        build(sys.argv[1:] or [*OPERATORS], lambda text: print(text, file=sys.stderr, flush=True))
    except Unavailable as error:
        print(f"no operators: {error}", file=sys.stderr)
        return UNAVAILABLE
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"operators: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
