"""Trajectories in, gradients out; knows nothing of worlds."""
