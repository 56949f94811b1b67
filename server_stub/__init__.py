"""The reference server of xdb: durable execution of processes on the user's own database."""
