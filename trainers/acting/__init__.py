"""Policy and worlds in, trajectories out; knows nothing of losses."""
