"""Front ends: they convert models that were not written with minidnn's layers to graphs."""
