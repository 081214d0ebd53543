"""Messages, trees of tensors, keys, errors and the wire format: what every other room stands on."""
