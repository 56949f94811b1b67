"""The HTTP face of the server."""
