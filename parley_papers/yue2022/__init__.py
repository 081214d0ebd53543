"""Paper 003: NTK-FL and CP-NTK-FL."""
