"""What happens to xdb as things grow: history, servers, memory, bursts and calls in flight; and where its time goes."""
