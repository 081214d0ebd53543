"""What attackers do to training, and what robust folding does about it."""
