"""What the witnesses assert is told with its figures."""

import pytest

pytest.register_assert_rewrite("tests.crash.mortal")
