"""`python -m server_stub.cli` is `xdb`."""

from server_stub.cli import main

main(prog_name="xdb")
