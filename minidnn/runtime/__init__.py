"""What a compiled network consists of and how it is called."""
