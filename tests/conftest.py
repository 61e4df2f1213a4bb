from pathlib import Path

if (Path(__file__).parent / "servers" / "plugin.py").exists():
    pytest_plugins = ["servers.plugin"]
