"""What pre-training from scratch is made of: texts, a vocabulary, masked words, their loss."""
