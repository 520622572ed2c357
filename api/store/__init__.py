"""The durable store of the service: what was uploaded, planned, acknowledged and measured."""
