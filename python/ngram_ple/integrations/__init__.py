"""Real clients, one file each: this library put under their models."""
