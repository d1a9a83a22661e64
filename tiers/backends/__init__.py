"""One file a kind of tier, exporting `open`."""
