"""The ladder of arrays that are reversed."""
