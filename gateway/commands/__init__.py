"""The subcommands of the command line that are larger than a few lines, one file each."""
