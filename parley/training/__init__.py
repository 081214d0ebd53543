"""The local training core, once, for one client or a stack of clients."""
