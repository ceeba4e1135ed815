"""Fine-tuning: table 1 and gates."""
