"""The commands of `wsgifast`, and their shared parts."""
