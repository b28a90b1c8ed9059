"""Runs tests in environments with the oldest and the newest versions that minidnn supports."""
