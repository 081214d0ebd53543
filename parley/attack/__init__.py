"""What an honest but curious server learns from what clients really send: attacks, defences, and how far they go.

findings = pl.attack(pl.load_study("study.toml"), victims=5)
findings.row("top-k(0.1)").values("ssim")
"""

from parley.core.rooms import make_callable

make_callable(__name__, "parley.attack.run:attack")
