"""What is forgotten after a while, in the background (idempotency-and-shards D.9, role system)."""
