"""Robust folding: what the server makes of replies some of which may be lies; settings, rules, and the reading."""
