"""The way to the server, and its scripts. The transport chooses what kind of server that is."""
