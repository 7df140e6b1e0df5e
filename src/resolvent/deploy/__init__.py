"""The algorithms of the simulator over a real network: transport, wire format, durable stores, coordinator and party."""
