"""Settings of the whole suite."""

import os

# Two workers on two cores must not fight for them: torch's threads spin while they wait for one another. Set before torch
# is imported, so that the commands that tests start keep to it too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
