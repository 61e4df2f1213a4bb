"""One file per store. Nothing here is imported before a URL asks for it."""
