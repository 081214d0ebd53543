"""The numbers of a partition."""

from __future__ import annotations

import numpy as np
import pytest

from parley.data import Dirichlet, Federation, describe, digits


def labels(*clients: list[int]) -> Federation:
    return Federation.from_arrays({str(i): (np.zeros((len(y), 1)), y) for i, y in enumerate(clients)})


def test_numbers_of_a_known_partition():
    facts = describe(labels([0, 0], [1, 1], [0, 1]))
    assert (facts["clients"], facts["samples"], facts["min"], facts["median"], facts["max"]) == (3, 6, 2, 2.0, 2)
    assert facts["pooled_label_entropy"] == pytest.approx(1.0)
    assert facts["mean_label_entropy"] == pytest.approx(1 / 3)
    assert facts["total_variation"] == pytest.approx((0.5 + 0.5 + 0) / 3)


def test_equal_clients_have_distance_zero():
    assert describe(labels([0, 1, 2], [0, 1, 2]))["total_variation"] == pytest.approx(0)


def test_pooled_and_loaded_clients_are_counted_alike():
    federation = digits().split(Dirichlet(0.2), 7)
    arrays = Federation.from_arrays({id: federation.client(id) for id in federation.ids}, info=federation.info)
    first, second = describe(federation), describe(arrays)
    assert {k: v for k, v in first.items() if k != "test_samples"} == {
        k: v for k, v in second.items() if k != "test_samples"
    }
