"""The broker layer, on fakeredis and on every real server there is."""
