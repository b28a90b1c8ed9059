"""Front ends: models that something else wrote, as graphs."""
