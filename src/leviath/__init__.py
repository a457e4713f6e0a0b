"""leviath: an embeddable engine for fleets of LLM-agent runs."""
