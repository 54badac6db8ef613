"""The DynamoDB JSON protocol: one door, an operation per target, and the shapes that requests must have."""
