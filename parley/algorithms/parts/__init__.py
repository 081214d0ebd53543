"""Parts of a model averaged at different frequencies (Gholami, Seferoglu)."""
