"""The built-in tools and what confines, supervises and bounds them."""
