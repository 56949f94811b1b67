"""How several servers share one database: who is there, whose the shards are, and what wakes the others."""
