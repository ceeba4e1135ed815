"""Fine-tuning: the parts of `finetune.py`."""
