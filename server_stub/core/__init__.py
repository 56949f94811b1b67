"""The functional core: the rules of semantics.md as plain functions on plain data. No clock, no randomness, no I/O."""
