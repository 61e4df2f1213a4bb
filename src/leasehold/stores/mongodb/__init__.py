"""MongoDB: ``store.py`` says what is asked, ``pipelines.py`` how a record changes, ``calls.py`` who is called."""
