"""The model 'features': its maps are the theory's, drawn from the key or from public points, and survive an export."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from parley import models
from parley.algorithms.averaging.local_update import FedAvg
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import Federation
from parley.models.feature_model import (
    ChebyshevFeatures,
    FeatureModel,
    FeatureSpec,
    IdentityFeatures,
    MonomialFeatures,
    NystroemFeatures,
    RandomFourierFeatures,
    feature_maps,
)
from parley.study.toml import study_from_dict
from parley.study.train import make_task, train
from parley.theory import kernel as theory

PUBLIC = torch.linspace(-1, 1, 40)[:, None]
X = torch.linspace(-0.9, 0.8, 7)[:, None]
SPECS: dict[str, FeatureSpec] = {
    "identity": IdentityFeatures(),
    "monomials": MonomialFeatures(4),
    "chebyshev": ChebyshevFeatures(5, kind=2),
    "random-fourier": RandomFourierFeatures(8, 0.3, "laplace"),
    "nystroem": NystroemFeatures(6, theory.RBF(0.4)),
}


def built(name: str, seed: int = 0) -> FeatureModel:
    module = models.build_module(models.features(SPECS[name]), (1,), 2, Key(seed), PUBLIC)
    assert isinstance(module, FeatureModel)
    return module


def test_every_map_is_covered_here():
    assert {name: feature_maps[name] for name in feature_maps} == {name: type(spec) for name, spec in SPECS.items()}


@pytest.mark.parametrize("name", SPECS)
def test_it_is_linear_in_its_features_and_starts_at_zero(name: str):
    module = built(name)
    assert not module(X).any()
    with torch.no_grad():
        module.head.weight.normal_(generator=Key(1).torch())
    phi = module.phi(X.double().numpy())
    np.testing.assert_allclose(module.features(X).numpy(), phi)
    np.testing.assert_allclose(module(X).detach().numpy(), phi @ module.head.weight.detach().numpy().T)
    assert module(X).dtype == torch.float64
    trainable = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trainable == {"head.weight"}


@pytest.mark.parametrize("name", ["random-fourier", "nystroem"])
def test_the_key_decides_what_is_drawn(name: str):
    one, again, other = (built(name, seed).features(X) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert name == "nystroem" or not torch.equal(one, other)  # forty points are few enough to look at all of them


def test_nystrom_features_are_the_kernel_at_public_landmarks():
    module = built("nystroem")
    landmarks = module.get_parameter("landmarks").numpy()
    assert all((PUBLIC.double().numpy() == point).all(1).any() for point in landmarks)
    product = module.features(torch.from_numpy(landmarks)) @ module.features(X).T
    np.testing.assert_allclose(product.numpy(), theory.RBF(0.4)(landmarks, X.double().numpy()), atol=1e-10)


def test_landmarks_come_from_the_public_points_of_a_study():
    table = {
        "data": {"name": "diabetes", "clients": 3, "public_fraction": 0.1},
        "model": {"name": "features", "map": {"name": "nystroem", "features": 5, "kernel": {"name": "laplace"}}},
        "algorithm": {"name": "feature-fedprox"},
    }
    study = study_from_dict(table)
    assert study.model == models.features(NystroemFeatures(5, theory.Laplace()))
    federation = study.federation()
    module = make_task(federation, study.model, 0).module
    assert isinstance(module, FeatureModel)
    public = federation.public.double().numpy()
    assert all((public == point).all(1).any() for point in module.get_parameter("landmarks").numpy())
    resolved = study.resolved()["model"]
    assert resolved["map"]["kernel"] == {"name": "laplace", "lengthscale": 1.0}
    assert study_from_dict(table | {"model": resolved}).model == study.model


def test_what_does_not_fit_is_said():
    with pytest.raises(InputError, match="public points, and this federation has none"):
        models.build_module(models.features(SPECS["nystroem"]), (1,), 1, Key(0))
    with pytest.raises(InputError, match="one-dimensional points, not 3 columns"):
        models.build_module(models.features(SPECS["monomials"]), (3,), 1, Key(0))
    with pytest.raises(InputError, match="at least one number"):
        models.build_module(models.features(SPECS["identity"]), (0,), 1, Key(0))
    with pytest.raises(InputError, match="NaN or infinite value in row 1"):
        built("identity")(torch.tensor([[0.0], [torch.nan]]))
    with pytest.raises(InputError, match="an even number, not 7"):
        models.build_module(models.features(RandomFourierFeatures(7)), (1,), 1, Key(0))


def test_an_export_carries_its_features(tmp_path):
    module = built("random-fourier")
    with torch.no_grad():
        module.head.weight.normal_(generator=Key(1).torch())
    files = models.export_module(module, X, tmp_path / "out", ["safetensors"])
    other = built("random-fourier", seed=5)
    assert not torch.allclose(other.features(X), module.features(X))
    other.load_state_dict(load_file(files[0]))
    assert torch.equal(other(X), module(X))
    with pytest.raises(InputError, match=r"could not be exported \(torchscript: its forward pass cannot be traced"):
        models.export_module(module, X, tmp_path / "script", ["torchscript"])


def test_any_algorithm_can_train_it():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (60, 1)).astype(np.float32)
    y = np.sin(3 * x[:, 0])
    federation = Federation.from_arrays({"a": (x[:20], y[:20]), "b": (x[20:], y[20:])}, test=(x, y))
    run = train(
        FedAvg(lr=0.5, epochs=2, batch=10), federation, model=models.features(SPECS["random-fourier"]), rounds=60
    )
    assert run.state["model"]["head.weight"].dtype == torch.float64
    assert run.last("loss") < 0.05 * float(np.square(y).mean())
