"""BabyAI: Minigrid's levels, told in words and played in moves of a few steps each."""
