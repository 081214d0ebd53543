"""Who gains by joining: every client's own best model against the federated one, on samples neither has seen.

gains = from_study(load_study("study.toml"))
gains = gain(FedAvg(lr=0.1, epochs=2), federation, model=mlp(64), rounds=50)
gains.clients[3].gain, gains.clients[3].low, gains.clients[3].high, gains.clients[3].decision
gains.stop.round, gains.summary()
"""

from parley.advise.gain.estimate import from_study, gain
from parley.advise.gain.result import ClientGain, Decision, Gains
from parley.advise.gain.stop import StopAdvice

__all__ = ["ClientGain", "Decision", "Gains", "StopAdvice", "from_study", "gain"]
