"""Scripts that run in a library's own environment and train with the library's own classes (docs/conformance.md)."""
