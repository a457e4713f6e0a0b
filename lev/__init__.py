"""The front end: the only place where adapters are chosen and wired."""
