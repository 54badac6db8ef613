"""Properties that hold for all inputs and all orders of events, looked for by hypothesis."""
