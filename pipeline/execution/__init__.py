"""How stages are run: in order, under locks, shard by shard."""
