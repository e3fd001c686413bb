"""What generates replies: token ids in, token ids out."""
