"""Calls to workers, many in one request."""
