"""SciWorld: the ScienceWorld simulator, many isolated copies of it in one Java process."""
