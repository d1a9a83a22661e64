"""The subcommands of `tiergate`, a file each: `register(subparsers)` adds one."""
