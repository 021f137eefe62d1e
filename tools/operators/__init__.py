"""Other people's controllers, built from their Go modules and run beside a test cluster.

`make operators` builds them, once; tests of the gangs that they create skip where they are not built.
"""

from tools.operators.programs import OPERATORS, Operator, is_built
from tools.operators.running import program_of, running_operator

__all__ = ["OPERATORS", "Operator", "is_built", "program_of", "running_operator"]
