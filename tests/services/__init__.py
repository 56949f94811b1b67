"""Real databases for tests and benchmarks: servers of one's own, and those that a whole test run shares."""
