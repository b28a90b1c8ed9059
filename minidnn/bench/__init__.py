"""Measures minidnn against other engines: networks and training steps, in interleaved rounds."""
