"""A third party's backend and front end."""
