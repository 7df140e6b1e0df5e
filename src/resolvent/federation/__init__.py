"""The algorithms of the simulator over a network: transport, wire format, durable stores, coordinator, party."""
