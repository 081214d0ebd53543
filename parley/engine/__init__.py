"""The round loop: sampling, faults, evaluation, checkpoints and the run store."""
