"""Paper 001: convergence and accuracy trade-offs in federated learning and meta-learning."""
