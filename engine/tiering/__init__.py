"""Keys and values outside of the block pool: in host memory, in a file, and on the way between."""
