"""The subcommands of the command line `wsgifast`, and their shared modules."""
