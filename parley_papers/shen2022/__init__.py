"""Paper 002, federated functional gradient boosting: its settings on problems whose optimum is known."""
