"""What is due next, and the hand-over of it; the database is the truth, delivery makes it prompt."""
