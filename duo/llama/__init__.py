"""llama.cpp, through llama_cpp: the only package that imports it."""

import ctypes
import os
from contextlib import suppress

# A library for CUDA defines much of libstdc++ itself. Unless the system's comes before all others, the process crashed
# when a model was loaded (CUDA 13, GCC 13, llama-cpp-python 0.3.36).
with suppress(OSError):
    ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)


def spin_briefly() -> None:
    """Let OpenMP's threads spin for 2,000 turns (0.2 ms), not 300,000 (30 ms), before they sleep in a wait for others.

    For models that share the machine with another process, before llama.cpp is loaded: with more threads than cores,
    the thread that is waited for is often the one whose core the other holds, and a decode waits hundreds of times. A
    process that runs two models in turns needs the longer time: waking its threads would cost it a fifth of its speed.
    """
    # putenv() is for this process: os.environ, which processes that it starts inherit, keeps the user's choice.
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.putenv("GOMP_SPINCOUNT", "2000")
