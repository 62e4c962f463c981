"""Where the project's directories lie, found from the repository, not the working directory."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
ASSETS = ROOT / "assets"
OUTPUTS = ROOT / "outputs"
