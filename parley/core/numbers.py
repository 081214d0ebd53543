"""How numbers and settings are written, on the terminal, on pages and in tables alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def metric_text(metric: str, value: float, digits: int = 2) -> str:
    """A metric's value: accuracies in percent with so many digits behind the point, others with four digits.

    >>> metric_text("central/accuracy", 0.9387), metric_text("central/loss", 0.123456)
    ('93.87%', '0.1235')
    """
    if math.isnan(value):
        return "nan"
    return percent(value, digits) if metric.endswith("accuracy") else f"{value:.4g}"


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}%"


def amount(value: float) -> str:
    """A quantity with about three digits: 0.42, 8.31, 37.2, 1,250."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def megabytes(count: float) -> str:
    """Bytes in megabytes (10^6), with three digits where they are few: 0.00123, 4.56, 250, 1,250."""
    return f"{count / 1e6:.3g}" if count < 99.95e6 else f"{count / 1e6:,.0f}"


def duration(seconds: float) -> str:
    """Seconds for people: 8 s, 2:05, 1:02:05."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def setting_text(value: Any) -> str:
    """A setting's value as one would write it in a study; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(setting_text, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key} = {setting_text(inner)}' for key, inner in value.items())}}}"
    return str(value)
