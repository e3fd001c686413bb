"""One module per scenario: its instruction, its options and its action grammar, as pure functions."""
