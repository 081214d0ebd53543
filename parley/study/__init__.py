"""A study: built in Python or read from TOML, checked, resolved, fingerprinted, trained."""
