"""Images: where they come from, how they are read, augmented, and shown to a model for evaluation."""
