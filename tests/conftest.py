"""What holds for all tests, however they are started: one thread per process, for as many processes as there are cores
test at once, and the usual signals and permissions, which processes that are started inherit."""

import os
import signal

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background ignores it
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.umask(0o022)
for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)  # what is printed is compared as a file or a pipe has it, whoever runs the tests

# The device without memory of tests/training/test_devices.py must be known before anything is differentiated.
from torch.utils import backend_registration  # noqa: E402

backend_registration._setup_privateuseone_for_python_backend("gpu")
