"""TextCraft: crafting by Minecraft's recipes."""
