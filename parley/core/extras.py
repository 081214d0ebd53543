"""How the packages that only some features need are installed."""


def how_to_install(extra: str) -> str:
    """What to do, for the end of a message."""
    return f"run pip install -c constraints.txt '.[{extra}]' in a checkout of Parley"
