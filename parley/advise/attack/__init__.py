"""What an honest but curious server learns from what clients really send: attacks, defences, and how far they go.

findings = attack(load_study("study.toml"), victims=5)
findings.row("top-k(0.1)").values("ssim")
"""

from parley.advise.attack.findings import Findings, Row, Score
from parley.advise.attack.matching import Effort
from parley.advise.attack.run import attack

__all__ = ["Effort", "Findings", "Row", "Score", "attack"]
