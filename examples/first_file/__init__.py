"""A process in one file, for a project of your own: copy `greeting.py`."""
