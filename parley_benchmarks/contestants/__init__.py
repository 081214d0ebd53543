"""The programs that race, one process tree each.

They import nothing of Parley except each other (only `parley_` does), because the peers run them inside environments of
their own that hold NumPy, PyTorch, safetensors and the peer: each is started as `python -m contestants.<name>` with
this folder's parent on the path.
"""
