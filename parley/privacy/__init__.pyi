"""Differential privacy; `__init__.py` reads this file for where each name comes from."""

from parley.privacy.accounting import Mechanism as Mechanism
from parley.privacy.accounting import least_multiplier as least_multiplier
from parley.privacy.plan import PrivacyPlan as PrivacyPlan
from parley.privacy.plan import privacy_plan as privacy_plan
from parley.privacy.settings import Privacy as Privacy
