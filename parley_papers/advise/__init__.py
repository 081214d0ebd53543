"""Is the advice good? Held against the best of a grid on federations of known truth, and against FedAvg on pictures."""
