"""A user signs up, is reminded until the address is verified, and is welcomed: the example that the docs build."""
