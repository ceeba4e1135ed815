"""Files of tasks that ask for other things than labels of texts."""
