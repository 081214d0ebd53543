"""Methods around other methods."""
