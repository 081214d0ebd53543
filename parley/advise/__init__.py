"""What to do with a federation: from measurements and theory to a recommendation."""
