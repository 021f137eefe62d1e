"""Settings that every test shares."""

import os

from hypothesis import settings

# No deadline: a test checks behaviour, never time. CI draws the same examples every run, so that a
# failure there is the change's own; elsewhere every run explores new ones.
settings.register_profile("ganger", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("ganger")
