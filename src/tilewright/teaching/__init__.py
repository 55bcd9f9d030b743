"""What runs teach: a skill for other authors, records to train on, and an exam that tells whether a skill helps."""
