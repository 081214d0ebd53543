"""Differential privacy of clients: one plan for sampling, clipping, noise and accounting; they cannot disagree."""

from parley.engine.privacy.accounting import Mechanism, least_multiplier
from parley.engine.privacy.plan import PrivacyPlan, privacy_plan
from parley.engine.privacy.settings import Privacy

__all__ = ["Mechanism", "Privacy", "PrivacyPlan", "least_multiplier", "privacy_plan"]
