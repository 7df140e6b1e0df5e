"""Where the parties' data and states are: device, host, several processes."""
