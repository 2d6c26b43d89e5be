"""What cannot be collected with every Python."""

from __future__ import annotations

import sys

collect_ignore = ["test_http_api.py"] if sys.version_info < (3, 11) else []  # schemathesis needs 3.11
