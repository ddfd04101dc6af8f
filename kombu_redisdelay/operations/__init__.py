"""What an operator can ask and do, as objects. Nothing here prints."""
