"""Kernels by the library neural-tangents, for test_neural_tangents.py, which runs this in an environment that has it.

Reads the case, the inputs and the weights from a file, writes the kernel over samples and outputs [n, n, out, out].
"""

import sys

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np

jax.config.update("jax_enable_x64", True)


def mlp(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ p["0.weight"].T + p["0.bias"])
    x = jnp.tanh(x @ p["2.weight"].T + p["2.bias"])
    return x @ p["4.weight"].T + p["4.bias"]


def cnn(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    for layer, stride in (("0", 2), ("2", 1)):
        pad = [(1, 1), (1, 1)] if stride == 2 else "VALID"
        x = jax.lax.conv_general_dilated(x, p[f"{layer}.weight"], (stride, stride), pad)
        x = jax.nn.relu(x + p[f"{layer}.bias"][:, None, None])
    return x.reshape(len(x), -1) @ p["5.weight"].T + p["5.bias"]


case, source, target = sys.argv[1:]
with np.load(source) as file:
    weights = {name: jnp.asarray(file[name]) for name in file.files}
x = weights.pop("x")
full = nt.empirical_ntk_fn({"mlp": mlp, "cnn": cnn}[case], trace_axes=(), vmap_axes=0)
np.save(target, full(x, None, weights))
