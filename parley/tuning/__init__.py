"""Searching settings: named spaces, runs as trials, and what proposes the next one."""
