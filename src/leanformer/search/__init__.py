"""lean: a trained model and a target in, a lean model out; what to change where is searched over measured time."""
