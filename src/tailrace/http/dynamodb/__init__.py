"""The DynamoDB JSON protocol: one handler, an operation per target, and the shapes of the requests."""
