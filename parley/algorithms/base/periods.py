"""How often to average which part: the least disagreement among clients that a communication budget allows.

Clients' copies of a part move apart linearly in time, so its squared consensus distance T rounds after an average is
about v T^2 per parameter, v being measured. Periods T_q of parts with s_q parameters should

    minimise sum_q s_q v_q T_q^2   subject to   sum_q s_q / T_q <= budget sum_q s_q,

whose solution over the reals is T_q proportional to v_q^(-1/3). Periods are powers of two, so that parts meet.
"""

from __future__ import annotations

from collections.abc import Sequence


def plan_periods(rates: Sequence[float], sizes: Sequence[int], budget: float, longest: int) -> list[int]:
    """Periods in {1, 2, 4, ..., longest}; `budget` is the share of the traffic of averaging all in every round.

    Halving T_q lowers the sum by 3/4 s_q v_q T_q^2 and costs s_q / T_q. The gain per cost falls by 8 with each halving,
    so taking the best ones first is best, up to the last that fits.
    """
    periods = [longest] * len(rates)
    left = budget * sum(sizes) - sum(size / longest for size in sizes)
    while True:
        fits = [q for q, T in enumerate(periods) if T > 1 and sizes[q] / T <= left * (1 + 1e-12)]
        if not fits:
            return periods
        best = max(fits, key=lambda q: rates[q] * periods[q] ** 3)
        left -= sizes[best] / periods[best]
        periods[best] //= 2
