"""What importing the client costs."""

import subprocess
import sys


def test_importing_the_sdk_imports_no_http_client() -> None:
    code = "import sys, xdb_sdk; print([name for name in sys.modules if name in ('httpx', 'httpcore', 'aiohttp')])"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"
