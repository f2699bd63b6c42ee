"""The commands of `wsgifast`, and what they share."""
