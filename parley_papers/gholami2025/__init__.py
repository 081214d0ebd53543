"""Paper 004: differentiated aggregation to improve generalization in federated learning (FedALS)."""
