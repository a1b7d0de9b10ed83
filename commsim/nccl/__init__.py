"""What NCCL chooses for a call, and how long the choice takes."""
