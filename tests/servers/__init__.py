"""Real servers for the tests: started by the run itself, on loopback, each in a folder of its own.

A test asks for a fixture of `plugin.py`. `base.py` says what every server can do (pause, kill, restart ...),
the other files say how each one is started and how to ask it something without its driver.
"""
