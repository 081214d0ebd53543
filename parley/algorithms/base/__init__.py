"""What methods share: the protocol, local SGD, server optimizers, parts of models, least squares."""
