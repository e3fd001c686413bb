"""Policy in, better policy out: multi-turn RL on vectorised text environments."""
