"""SearchQA: questions to be answered by searching a corpus."""
