"""Functional gradient boosting (Shen et al.) and distillation."""
