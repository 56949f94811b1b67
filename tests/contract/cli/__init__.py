"""The command line, against a real server and worker."""
