"""The way to the server, and its scripts. Nothing above this package knows what kind of server that is."""
