"""`parley demo`: a first look at the library, on data that comes with it."""
