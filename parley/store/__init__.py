"""The run store, checkpoints, memories of clients, locks and tables: what outlives a process."""
