"""Topics: durable messages in partitions, fed by routes from tables or published, and consumed by groups."""
