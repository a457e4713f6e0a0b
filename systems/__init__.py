"""The rules: plain functions over one run or over the world. No I/O, no await."""
