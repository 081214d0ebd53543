"""Paper 000: a non-parametric view of FedAvg and FedProx; Figures 1-6 with the paper's settings."""
