"""Processes to read and to run, each alone: `python -m examples.user_signup`."""
