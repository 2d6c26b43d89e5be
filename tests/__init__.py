"""Tests. Threads that wait for each other sleep: where they spin, a busy machine makes each decode take seconds."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when llama.cpp is loaded
